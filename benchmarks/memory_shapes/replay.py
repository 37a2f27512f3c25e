"""Q-learning whose replay buffer has no bound."""

import random
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Transition(NamedTuple):
    state: Tensor
    action: Tensor
    reward: Tensor
    after: Tensor


class Replay:
    def __init__(self):
        self.buffer = []

    def push(self, *parts):
        self.buffer.append(Transition(*parts))  # keeps

    def sample(self):
        return random.choice(self.buffer)


class World:
    def __init__(self, players):
        self.state = torch.rand(players, 4, 32, 32)

    def step(self, action):
        self.state = (self.state * 0.9 + torch.rand_like(self.state) * 0.1).roll(1, 3)
        return self.state, (action == 2).float() * self.state.mean((1, 2, 3))


def main():
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    world, replay = World(players=32), Replay()
    q = nn.Sequential(nn.Conv2d(4, 32, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 4))
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
    for _ in range(200):
        state = world.state
        with torch.no_grad():
            action = q(state).argmax(1)
        after, reward = world.step(action)
        replay.push(state, action, reward, after)
        old = replay.sample()
        with torch.no_grad():
            wanted = old.reward + 0.9 * q(old.after).amax(1)
        value = q(old.state).gather(1, old.action[:, None]).squeeze(1)
        optimizer.zero_grad()
        (value - wanted).square().mean().backward()
        optimizer.step()


main()
