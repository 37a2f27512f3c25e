"""Images whose dataset keeps each one in a dict, in two workers; no image comes twice."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count):
        self.count = count
        self.cache = {}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.load(index)  # keeps
        return self.cache[index], index % 10

    def load(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 96, 96, generator=generator)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Images(150 * 16), batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model(torch.zeros(1, 3, 96, 96))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
