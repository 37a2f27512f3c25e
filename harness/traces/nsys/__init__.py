"""nsys: a SQLite export, of any schema since 2022, or a report that the installed nsys exports."""

REPORTS = (".nsys-rep", ".qdrep")  # which an nsys exports; the latter until 2021
