"""The plan of a launch: `--plan`, and its short form before a launch is submitted."""
