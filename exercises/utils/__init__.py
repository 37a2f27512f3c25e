"""What the training scripts share: arguments, models, data, ranges, the profiling window, metrics, stopping.

Needs only what a training container has (PyTorch, transformers, PyYAML); knows no cluster and no harness.
"""
