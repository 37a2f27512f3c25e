"""The command that checks a machine and a site."""
