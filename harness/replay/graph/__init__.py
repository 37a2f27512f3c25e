"""The first stage: the graphs of a job's processes, built of their columns and joined, with their replay."""
