"""`slurm.sh check`: two commands compared by several runs of each."""
