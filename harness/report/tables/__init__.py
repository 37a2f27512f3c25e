"""The tables of a report, in the terminal and as files."""
