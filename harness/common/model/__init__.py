"""A model and its layout over ranks, as formulas need them."""
