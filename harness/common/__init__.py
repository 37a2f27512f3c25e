"""What the launcher and a training script must agree on. Standard library only."""
