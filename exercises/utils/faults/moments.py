"""The moments of a step at which faults act, and how the parts of a training announce them.

Knows modules, loaders and optimizers of PyTorch; knows no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

Moment = Literal["load", "forward", "backward", "optimizer", "updated"]


class Moments:
    """Counts the steps of a training and calls what waits for a moment, the first time that a step comes to it. step:
    the number of the current step; -1 before the first."""

    def __init__(self) -> None:
        self.step = -1
        self._at_begin: list[Callable[[], None]] = []
        self._waiting: dict[Moment, list[Callable[[], None]]] = {}
        self._reached: set[Moment] = set()
        self._changes: list[Callable[[Any], Any]] = []

    def at_begin(self, action: Callable[[], None]) -> None:
        self._at_begin.append(action)

    def at(self, moment: Moment, action: Callable[[], None]) -> None:
        """Call `action` in every step that comes to `moment`."""
        self._waiting.setdefault(moment, []).append(action)

    def change_batches(self, change: Callable[[Any], Any]) -> None:
        """Give the training what `change` makes of each batch."""
        self._changes.append(change)

    def changed(self, batch: Any) -> Any:
        for change in self._changes:
            batch = change(batch)
        return batch

    def begin(self) -> None:
        self.step += 1
        self._reached.clear()
        for action in self._at_begin:
            action()

    def reach(self, moment: Moment) -> None:
        """The step comes to `moment`, perhaps again, as with several micro-batches."""
        if moment not in self._reached:
            self._reached.add(moment)
            for action in self._waiting.get(moment, ()):
                action()


class WatchedLoader:
    """A data loader with whose batches the steps begin."""

    def __init__(self, loader: Any, moments: Moments) -> None:
        self._loader, self._moments = loader, moments

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        for _ in range(len(self)):
            self._moments.begin()
            batch = next(batches)
            self._moments.reach("load")
            yield self._moments.changed(batch)
        yield from batches  # none is left: this ends the loader's epoch


def watch_model(model: nn.Module, moments: Moments, until: ExitStack) -> None:
    """Announce the forward of `model`, and the backward of the loss in its output, `until` it is closed."""

    def after_forward(_module: nn.Module, _inputs: object, output: Any) -> None:
        output.loss.register_hook(lambda _gradient: moments.reach("backward"))

    until.callback(model.register_forward_pre_hook(lambda *_: moments.reach("forward")).remove)
    until.callback(model.register_forward_hook(after_forward).remove)


def watch_update(optimizer: Any, moments: Moments, until: ExitStack) -> None:
    """Announce the start and the end of `optimizer.step()`, `until` it is closed."""

    def announced(step: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            moments.reach("optimizer")
            result = step(*args, **kwargs)
            moments.reach("updated")
            return result

        return watched

    wrap(optimizer, "step", announced, until)


def at_next_call(action: Callable[[], None]) -> None:
    """Call `action` where the next module is called: what it raises there reaches the training's own code, and not
    the observer, which tells the moments of an unchanged training."""

    def before(*_: object) -> None:
        handle.remove()
        action()

    handle = register_module_forward_pre_hook(before)


def wrap(
    owner: object, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]], until: ExitStack
) -> None:
    """Replace the function `name` of an object, class or module by its `wrapper`, `until` it is closed."""
    own = vars(owner).get(name)  # as it is kept: what `getattr` gives of a class may be bound otherwise
    setattr(owner, name, wrapper(getattr(owner, name)))
    if own is None:
        until.callback(delattr, owner, name)
    else:
        until.callback(setattr, owner, name, own)
