"""Checks all that a course needs, and reports each problem with the command that fixes it."""
