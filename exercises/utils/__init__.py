"""What the training scripts share: arguments, models, data, ranges, captures, metrics, stopping.

Needs only what a training container has (PyTorch, transformers, PyYAML), and of the harness only `harness.common`.
"""

import sys

# A container brings its own Python. What follows is written so that every Python 3 can read it.
if sys.version_info < (3, 10):  # noqa: UP036  # for those that are older
    sys.exit("{} is Python {}.{}, and the exercises need 3.10 or newer".format(sys.executable, *sys.version_info))
