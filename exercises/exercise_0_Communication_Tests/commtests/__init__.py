"""Exercise 0: what the links of this allocation are, and how fast a collective runs over them.

The topology part needs Python's standard library only, the benchmark torch and numpy.
"""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
