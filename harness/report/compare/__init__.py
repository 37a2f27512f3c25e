"""The differences of runs, in terminal and page."""
