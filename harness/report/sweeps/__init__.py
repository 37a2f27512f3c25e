"""Series of runs as people read them: a table, a CSV file, plots with intervals."""
