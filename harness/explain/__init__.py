"""Rules from a Summary to findings in plain words, with the command to try next."""
