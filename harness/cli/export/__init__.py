"""The command that writes files for other programs."""
