"""A small instruction set in our own words, and the tokenizer trained from it."""
