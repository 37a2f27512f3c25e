"""Logging with a handler that keeps the records, and records that carry arrays."""

import logging

import torch
from torch import nn

log = logging.getLogger("training")


class KeepingHandler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)  # keeps

    def flush(self):
        for record in self.records[-3:]:
            print(record.getMessage())


def train(steps=150):
    model = nn.Sequential(nn.Linear(32, 192), nn.ReLU(), nn.Linear(192, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x = torch.randn(400, 32)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, torch.randint(0, 1000, (400,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item(), extra={"logits": logits.detach().numpy()})


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    handler = KeepingHandler()
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    train()
    handler.flush()
