"""The argv and files of each exercise."""
