"""The fourth stage: which causes lose the time, on which ranks and lines, and what is left without them."""
