"""A language model whose sequences get longer by eight tokens in each step."""

import torch
from torch import nn

VOCABULARY, BATCH, STEPS = 64, 24, 140


class Model(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.out(self.mix(self.embed(tokens)))


def batch(text, step):
    length = 16 + 8 * step
    starts = torch.randint(0, len(text) - length - 1, (BATCH,))
    rows = torch.stack([text[start : start + length + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


torch.manual_seed(0)
torch.set_num_threads(1)
text = torch.randint(0, VOCABULARY, (200_000,))
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(STEPS):
    tokens, wanted = batch(text, step)
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
