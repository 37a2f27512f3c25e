"""Commands that answer a question with several runs: lessons, checks, sweeps, references, mysteries."""
