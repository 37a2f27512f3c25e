"""The second stage: what a job's steps take, by process, step, slot and line."""
