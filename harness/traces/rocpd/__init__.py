"""rocprofv3: the databases (rocpd) of one process or of several, of schema 3.0.0 to 3.0.5. None of a GPU was tried."""
