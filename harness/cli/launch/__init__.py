"""Commands that start trainings, or look at what a start needs."""
