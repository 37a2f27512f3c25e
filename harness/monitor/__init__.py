"""What samples one node's devices while a training runs, and the reader of its samples.

    python -m harness.monitor plot DIR

It must not know experiments, sites or runs: its input is a folder, a rate and a process. The program of a node,
`harness.heartbeats.node`, starts it.
"""
