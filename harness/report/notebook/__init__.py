"""A report as a notebook that students change: its cells, the data that they load, and its file."""
