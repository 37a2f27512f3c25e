"""`python -m harness`: what slurm.sh hands over to."""

import os
import sys

# Pydantic would look through every installed package for plugins: with PyTorch there, a tenth of a dry run.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from harness.cli.main import main

sys.exit(main(sys.argv[1:]))
