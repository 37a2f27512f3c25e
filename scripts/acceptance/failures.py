"""The ways in which a step cannot do its work, each one sentence for a person."""


class AcceptanceError(Exception):
    """The request is wrong, or the folder cannot be used."""


class LackError(Exception):
    """This machine has not what the step needs; the sentence names it."""


class StepError(Exception):
    """What the step started did not do what it should have."""
