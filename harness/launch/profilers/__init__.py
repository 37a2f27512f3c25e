"""How a launch is observed."""
