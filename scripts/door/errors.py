"""The one way in which making the environment fails: a sentence for a person."""


class DoorError(Exception):
    """What went wrong and what to do about it, in one sentence."""
