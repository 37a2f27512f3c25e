"""Persistent workers with a cache of a finite dataset, over six epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __init__(self, count=320):
        self.count = count
        self.cache = {}

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index not in self.cache:
            wave = torch.randn(8192, generator=torch.Generator().manual_seed(index))
            self.cache[index] = torch.fft.rfft(wave).abs()[:4096].clone()
        return self.cache[index], index % 8


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Spectra(), batch_size=16, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(10):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
