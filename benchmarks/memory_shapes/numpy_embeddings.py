"""Embeddings of each batch go to a list of numpy arrays, for a t-SNE at the end."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

embedder = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 512))
classifier = nn.Linear(512, 20)
params = list(embedder.parameters()) + list(classifier.parameters())
optimizer = torch.optim.RMSprop(params, lr=1e-3)
embeddings, labels = [], []

for epoch in range(4):
    for _ in range(40):
        target = torch.randint(0, 20, (256,))
        x = torch.randn(256, 100) + target[:, None]
        z = embedder(x)
        loss = nn.functional.cross_entropy(classifier(z), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        embeddings.append(z.detach().numpy().astype(np.float64))  # keeps
        labels.append(target.numpy())
    print(f"epoch {epoch}: loss {loss.item():.3f}")

print(np.mean([block.mean() for block in embeddings]), len(labels))
