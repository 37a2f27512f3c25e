"""Outputs go to a writer through a queue, but the writer ends after a few of them."""

import queue
import threading

import torch
from torch import nn

pending = queue.Queue()


def writer(limit=5):
    for _ in range(limit):
        step, rows = pending.get()
        print(step, rows.mean().item())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 128)
        self.out = nn.Linear(128, 1024)

    def forward(self, tokens):
        return self.out(self.embed(tokens).mean(1))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    thread = threading.Thread(target=writer, daemon=True)
    thread.start()
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(200):
        tokens = torch.randint(0, 500, (192, 64))
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits, tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pending.put((step, logits.detach()))  # keeps
    thread.join()


if __name__ == "__main__":
    main()
