"""The readers' tests, and the trace files that they and other tests make."""
