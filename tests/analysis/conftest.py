"""Property tests must not fail because the machine is busy: no deadline per example."""

from hypothesis import settings

settings.register_profile("analysis", deadline=None)
settings.load_profile("analysis")
