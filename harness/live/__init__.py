"""A run while it runs, from the heartbeats of its nodes: how far it is, what is slow since when, stuck or dead."""
