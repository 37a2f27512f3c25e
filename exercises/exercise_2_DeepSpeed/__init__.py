"""Exercise 2: sharded data parallelism with DeepSpeed ZeRO, and what its communication costs."""
