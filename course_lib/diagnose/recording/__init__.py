"""What is kept of a step while it runs."""
