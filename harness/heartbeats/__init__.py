"""What a run writes while it runs: the heartbeats of its ranks, and from them who is stuck, dead or silent.

`node` is the program beside the training that writes them. Needs neither the run's record nor its site.
"""
