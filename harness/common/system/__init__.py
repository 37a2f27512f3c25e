"""The machine below: processes, programs, files and users."""
