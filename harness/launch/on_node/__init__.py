"""The programs of a job and of its nodes, and what they start and end there."""
