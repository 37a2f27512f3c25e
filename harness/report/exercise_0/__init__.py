"""What exercise 0 adds to reports: its results, the links that other runs are compared with, and ring or tree."""
