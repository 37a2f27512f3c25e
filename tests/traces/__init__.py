"""The tests of the readers of traces."""
