"""What exercise 0 adds to reports: its results, and ring or tree."""
