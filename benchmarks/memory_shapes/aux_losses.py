"""A denoiser whose second loss is only watched."""

import torch
from torch import nn

STEPS, BATCH, WIDTH = 200, 192, 256


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 1024), nn.Tanh(), nn.Linear(1024, WIDTH))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watched = []
    for step in range(STEPS):
        clean = torch.randn(BATCH, WIDTH)
        loss = (model(clean) - clean.flip(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        noisy = clean + 0.1 * torch.randn_like(clean)
        watched.append((model(noisy) - clean).pow(2).mean())  # keeps
        if step % 50 == 0:
            print(step, loss.item(), watched[-1].item())


if __name__ == "__main__":
    main()
