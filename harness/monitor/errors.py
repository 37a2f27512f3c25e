"""The monitor's one error. It stands alone because the monitor imports nothing else of the project."""


class MonitorError(Exception):
    """One sentence for the person who asked: what was wrong with the request or with a folder of samples."""
