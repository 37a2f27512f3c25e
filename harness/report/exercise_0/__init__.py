"""The results of the communication tests."""
