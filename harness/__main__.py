"""`python -m harness`: what slurm.sh hands over to."""

from harness.cli.main import program

program()
