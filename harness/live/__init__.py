"""The screen of `watch`: a run while it runs, and what is to be said of it now. Only the command imports this room."""
