"""Slowdown by stragglers: a pipeline's operations replayed with ideal durations, and what explains the difference."""
