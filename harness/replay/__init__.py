"""What would happen if: a job's events as a graph, replayed, with one thing changed."""
