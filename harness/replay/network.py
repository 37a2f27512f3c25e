"""What-ifs about messages: their latency and bandwidth, and how many they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.phases import PHASES
from harness.common.alpha_beta import fit_alpha_beta
from harness.replay.edits import Edit, Edited
from harness.replay.scene import Scene, slots
from harness.replay.sorts import Sort
from harness.traces.trace import I64

BUCKET = 25 * 2**20  # bytes, PyTorch's own
SMALL = 2**16  # bytes: a message of less takes about as long as an empty one
MANY = 8  # messages of a step
_REDUCES = ("all_reduce", "reduce_scatter")


def ideal(scene: Scene) -> I64:
    """Every arc's length where messages take no time: ranks still wait for each other."""
    factors = scene.job.unchanged()
    factors[:, slots((Sort.TRANSFER, Sort.TRANSFER_HELD))] = 0
    return scene.job.scaled(factors)


def free(scene: Scene) -> Edited | None:
    """Messages that take no time."""
    return Edited(ideal(scene)) if len(scene.job.messages.arc) else None


def changed(latency: float, inverse_bandwidth: float) -> Edit:
    """Messages by the job's own α and β, with each multiplied."""

    def edit(scene: Scene) -> Edited | None:
        messages = scene.job.messages
        sizes = np.unique(messages.bytes[messages.bytes > 0])
        times = [float(np.median(messages.ns[messages.bytes == size])) for size in sizes]
        line = fit_alpha_beta(sizes.tolist(), times)
        if line is None:
            return None
        alpha, beta = line.alpha_ns, line.beta_ns_per_byte * messages.bytes
        ratio = (latency * alpha + inverse_bandwidth * beta) / np.maximum(alpha + beta, 1)
        return Edited(_with_transfers(scene, np.where(messages.bytes > 0, ratio, 1)))

    return edit


def small_buckets(scene: Scene) -> NDArray[np.bool_] | None:
    """Which messages are gradients in buckets so small that the latency counts; None: they are not."""
    job, messages = scene.job, scene.job.messages
    gradient = [call.kind in _REDUCES and PHASES[call.phase] == "backward" for call in job.calls]
    reduces = np.array([*gradient, False])[messages.call]
    each = np.count_nonzero(reduces) / job.measured.size
    if each < MANY or messages.bytes[reduces].mean() > SMALL:
        return None
    return reduces


def larger_buckets(scene: Scene) -> Edited | None:
    """Gradients in as few messages as buckets of 25 MB need, each with the latency of one of today's."""
    reduces = small_buckets(scene)
    if reduces is None:
        return None
    job, messages = scene.job, scene.job.messages
    now = np.count_nonzero(reduces) / job.measured.size
    then = max(-(-int(messages.bytes[reduces].sum() / job.measured.size) // BUCKET), 1)
    ratio = np.where(reduces, then / now, 1.0)
    return Edited(_with_transfers(scene, ratio))


def _with_transfers(scene: Scene, ratio: NDArray[np.float64]) -> I64:
    messages = scene.job.messages
    lengths: I64 = scene.job.lengths.copy()
    lengths[messages.arc] = np.rint(messages.ns * ratio).astype(np.int64)
    return lengths
