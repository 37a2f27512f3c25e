"""A report as a notebook for students to change: its cells, what they load, and its file."""
