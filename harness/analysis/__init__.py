"""Traces to numbers: columns in, parts of a Summary out. Launches nothing, and reads no run."""
