"""The parts of a job's processes to its Summary."""
