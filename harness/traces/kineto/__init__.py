"""torch.profiler's trace files (Kineto's JSON): bytes to a Trace, in bounded memory."""
