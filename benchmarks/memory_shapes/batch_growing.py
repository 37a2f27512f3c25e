"""The batch grows with the steps, as some schedules ask for."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIRST, MORE, STEPS = 32, 4, 150


class Waves(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        x = torch.linspace(0, 1 + index % 17, 8192).sin()
        return x, index % 17


class GrowingBatches:
    """A batch sampler."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return STEPS

    def __iter__(self):
        for step in range(STEPS):
            yield torch.randint(0, self.count, (FIRST + MORE * step,)).tolist()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Waves()
    model = nn.Sequential(nn.Linear(8192, 48), nn.ReLU(), nn.Linear(48, 17))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, label in DataLoader(data, batch_sampler=GrowingBatches(len(data))):
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.3f}, last batch {len(x)}")


if __name__ == "__main__":
    main()
