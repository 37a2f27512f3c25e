"""What the training scripts share: arguments, models, data, ranges, captures, metrics, stopping.

Needs only what a training container has (PyTorch, transformers, PyYAML), and of the harness only `harness.common`.
"""
