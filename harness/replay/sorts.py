"""The sorts of time that an arc of the graph is made of, so that an edit is a factor per sort.

A *slot* is a sort in a phase; device time is not split by phases, since a kernel runs when its phase may be over.
"""

from __future__ import annotations

from enum import IntEnum

from harness.analysis.process.phases import PHASES

N_PHASES = len(PHASES)
FORWARD, BACKWARD, OPTIMIZER, DATA, SENDING, OTHER = range(N_PHASES)  # indices into PHASES


class Sort(IntEnum):
    """What a stretch of an arc's time was."""

    HOST_WORK = 0  # operators of a CPU trace that are no matrix product
    HOST_PRODUCT = 1  # operators of a CPU trace that are matrix products or attention
    HOST_GAP = (
        2  # the host between operators, or between the calls of a trace with a GPU: Python and launching
    )
    HOST_STALL = 3  # of a stretch without an operator or call, what is longer than usual; so in several steps
    HOST_HELD = 4  # the same where other steps have none; of an operator, what is longer than in other steps
    HOST_SENDING = 5  # of the stretch right before a message is issued, what is longer than usual
    WAIT_TAIL = 6  # from the end of what the host waited for until it goes on
    DEVICE_WORK = 7
    DEVICE_PRODUCT = 8
    DEVICE_COPY = 9
    DEVICE_GAP = 10  # launch latency, and between kernels of a stream
    START_OF_MESSAGE = 11  # from the issue of a collective until its backend takes part in it
    TRANSFER = 12  # from the last rank's arrival until the collective is done
    TRANSFER_HELD = 13  # of it, what is longer than the same collective takes in other steps
    WAIT_HELD = 14  # of the start of a message and of the tail of a wait, what is longer than usual


SLOTS = len(Sort) * N_PHASES


def slot(sort: int, phase: int = N_PHASES - 1) -> int:
    """The slot of a sort in a phase, an index into PHASES; device time is in the last one."""
    return sort * N_PHASES + phase


def slots_of(sort: int) -> slice:
    """All slots of a sort."""
    return slice(sort * N_PHASES, (sort + 1) * N_PHASES)
