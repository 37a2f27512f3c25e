"""Where a job's elapsed time went, by what its ranks, its nodes and the job itself recorded."""
