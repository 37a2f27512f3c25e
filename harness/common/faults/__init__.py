"""The faults of a training: what they are, how they are asked for, and what hides them."""
