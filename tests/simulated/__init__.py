"""The tests of the simulated GPU jobs."""
