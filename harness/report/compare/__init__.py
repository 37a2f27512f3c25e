"""The differences between runs, in terminal and page."""
