"""The monitor's error; not a common one: its own command and its readers say it in their own ways."""


class MonitorError(Exception):
    """What is wrong with the request or with a folder of samples, in one sentence."""
