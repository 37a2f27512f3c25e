"""Commands on runs: list, follow, stop, record."""
