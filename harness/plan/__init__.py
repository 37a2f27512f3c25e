"""What a launch will need, take and cost, before it starts; each run keeps its plan."""
