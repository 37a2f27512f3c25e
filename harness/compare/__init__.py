"""Comparisons of runs: arms, the comparison of two, one verdict, and what differs between two summaries."""
