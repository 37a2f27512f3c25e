"""Who runs a script: Slurm, or this machine."""
