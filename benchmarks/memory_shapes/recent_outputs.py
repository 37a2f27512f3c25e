"""The latest fifty outputs in a deque with a bound."""

from collections import deque

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
recent = deque(maxlen=50)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1024))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    x = torch.randn(256, 64)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, x.argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recent.append(logits.detach())
    if step % 50 == 49:
        print(step, torch.stack([each.std() for each in recent]).mean().item())
