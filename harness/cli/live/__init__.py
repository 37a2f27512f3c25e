"""The command of the live screen."""
