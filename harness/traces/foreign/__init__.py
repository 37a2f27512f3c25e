"""Files that no profiler of ours wrote: Chrome's events of other tools, and what is refused with what to do instead."""
