"""The third stage: changes of the graph's arcs, and what a step gains by each."""
