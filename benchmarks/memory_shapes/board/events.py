"""A board of the project's own: what any module notes is kept until somebody writes it."""

EVENTS = []


def note(name, value):
    if hasattr(value, "detach"):
        value = value.detach()
    EVENTS.append((name, value))  # keeps


def names():
    return sorted({name for name, _ in EVENTS})
