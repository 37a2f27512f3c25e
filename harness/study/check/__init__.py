"""`slurm.sh check`: two commands held against each other by several runs of each."""
