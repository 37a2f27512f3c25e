"""Operation timelines: what each worker of a pipeline did in a step, from tables (Parquet, CSV) and Chrome events."""
