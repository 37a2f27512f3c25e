"""The command of the live screens."""
