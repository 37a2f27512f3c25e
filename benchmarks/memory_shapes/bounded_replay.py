"""Q-learning with a replay buffer of forty transitions."""

import random

import torch
from torch import nn


class Replay:
    def __init__(self, bound):
        self.bound, self.place = bound, 0
        self.kept = []

    def push(self, transition):
        if len(self.kept) < self.bound:
            self.kept.append(transition)
        else:
            self.kept[self.place] = transition
        self.place = (self.place + 1) % self.bound

    def sample(self):
        return random.choice(self.kept)


def main():
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    q = nn.Sequential(nn.Conv2d(4, 32, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 4))
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    replay, state = Replay(bound=40), torch.rand(32, 4, 32, 32)
    for _ in range(220):
        with torch.no_grad():
            action = q(state).argmax(1, keepdim=True)
        after = (state * 0.9 + torch.rand_like(state) * 0.1).roll(1, 3)
        replay.push((state, action, state.mean((1, 2, 3)), after))
        state = after
        old, chosen, reward, _ = replay.sample()
        loss = (q(old).gather(1, chosen).squeeze(1) - reward).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), len(replay.kept))


main()
