"""The error of making the environment: one sentence for a person."""


class BootstrapError(Exception):
    """What went wrong and what to do about it, in one sentence."""
