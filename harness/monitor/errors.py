"""The monitor's error; not a common one, because the monitor imports nothing else of the project."""


class MonitorError(Exception):
    """What is wrong with the request or with a folder of samples, in one sentence."""
