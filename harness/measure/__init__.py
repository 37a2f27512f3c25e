"""Names and paths to Summaries: here, by worker processes, by a Slurm job array; stored ones."""
