"""Reinforcement learning by mp.spawn: a rollout, then one update. Planted: rank 1's environment is slow."""

from __future__ import annotations

import os
import socket

import torch
import torch.multiprocessing as mp
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel


class Environment:
    def __init__(self, slow: bool) -> None:
        self.state, self.slow = torch.zeros(32, 16), slow

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        self.state = 0.9 * self.state + 0.1 * torch.randn(32, 16) + action[:, None]
        if self.slow:
            with planted():
                self._collide()  # plant
        return self.state, -self.state.abs().mean(1)

    def _collide(self) -> None:
        rows = self.state.tolist()  # plant
        for i, one in enumerate(rows):  # plant
            for other in rows[i + 1 :]:  # plant
                if sum(abs(a - b) for a, b in zip(one[:3], other, strict=False)) < 1e-6:  # plant
                    one[0] += 1e-3  # plant


def train(rank: int, port: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    start()
    policy = DistributedDataParallel(nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 4)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    environment = Environment(slow=PLANTED and rank == 1)
    for _ in range(STEPS):
        states, actions, rewards = [], [], []
        with torch.no_grad():
            for _ in range(24):
                states.append(environment.state)
                actions.append(Categorical(logits=policy.module(environment.state)).sample())
                rewards.append(environment.step(actions[-1].float() - 1.5)[1])
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        chosen = Categorical(logits=policy(torch.stack(states))).log_prob(torch.stack(actions))
        optimizer.zero_grad()
        (-(chosen * (returns - returns.mean())).mean()).backward()
        optimizer.step()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, args=(port,), nprocs=2)
