"""Numbers, labels, and what is known or withheld, as people read them."""
