"""The exercises: what a student runs and reads. Nothing here imports the harness."""
