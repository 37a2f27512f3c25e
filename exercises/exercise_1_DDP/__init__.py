"""Exercise 1: data-parallel training, where its time goes, and what slow data loading does to it."""
