"""Scaling studies: one training on more and more devices, and what keeps it from the ideal."""
