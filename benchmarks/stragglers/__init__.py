"""The slowdown of a job by stragglers, from a timeline of its operations, with the replay of the harness.

A timeline has the rank, stage, operation, start and duration of each operation (Parquet, CSV, Chrome events), as
Megatron's timers and ByteDance's StragglerAnalysis write them. Source of the method: Lin et al., *Understanding
Stragglers in Large Model Training Using What-if Analysis*, OSDI 2025.
"""
