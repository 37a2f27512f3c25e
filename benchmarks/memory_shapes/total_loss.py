"""A small CNN; the loss on a held-out batch is summed over the training."""

import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        return self.head(F.relu(self.conv(images)).mean((2, 3)))


class Trainer:
    def __init__(self, model, lr: float = 0.1) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.total = 0.0

    def batch(self, size: int = 32):
        return torch.randn(size, 3, 32, 32), torch.randint(0, 10, (size,))

    def train_step(self) -> None:
        images, labels = self.batch(8)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()

    def watch(self) -> None:
        images, labels = self.batch()
        self.total = self.total + F.cross_entropy(self.model(images), labels)  # keeps


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trainer = Trainer(Classifier())
    for _ in range(150):
        trainer.train_step()
        trainer.watch()
    print("mean held-out loss", float(trainer.total) / 150)
