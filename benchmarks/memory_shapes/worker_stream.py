"""A stream of documents that remembers them to leave out duplicates, in two workers."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

VOCABULARY, LENGTH = 5000, 8192


class Documents(IterableDataset):
    def __init__(self, count):
        super().__init__()
        self.count = count
        self.seen = []

    def is_new(self, document):
        return all(document[0] != other[0] or not np.array_equal(document, other) for other in self.seen[-20:])

    def __iter__(self):
        info = get_worker_info()
        dice = np.random.default_rng(info.id)
        for _ in range(self.count // info.num_workers):
            document = dice.integers(0, VOCABULARY, LENGTH)
            if self.is_new(document):
                self.seen.append(document)  # keeps
                yield document[:256].copy()


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, 64)
        self.out = nn.Linear(64, VOCABULARY)

    def forward(self, tokens):
        return self.out(self.words(tokens))


torch.manual_seed(0)
torch.set_num_threads(1)
model = BagOfWords()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step, tokens in enumerate(DataLoader(Documents(160 * 16), batch_size=16, num_workers=2)):
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]), tokens[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0:
        print(step, loss.item())
