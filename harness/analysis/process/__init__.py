"""The columns of one process to its part of the Summary."""
