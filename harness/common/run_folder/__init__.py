"""The files that a run leaves, and the forms of those that a training writes."""
