"""Many runs that were asked for together, made within a budget; what is done is read from the runs on disk alone."""
