"""What is looked for, and told, before a job waits in a queue."""
