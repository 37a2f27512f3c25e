"""Many runs that were asked for together, what is done is read from the runs on disk alone."""
