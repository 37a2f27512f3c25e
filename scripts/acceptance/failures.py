"""The ways in which a step cannot do its work, each one sentence for a person."""


class AcceptanceError(Exception):
    """The request is wrong, or the folder cannot be used."""


class LackError(Exception):
    """This machine lacks something that the step needs; the sentence names it."""


class StepError(Exception):
    """A program that the step started failed or left a wrong result."""
