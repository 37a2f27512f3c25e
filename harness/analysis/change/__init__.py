"""Whether a command's number changed, from several runs of it: the run is the sample. Knows no run on disk."""
