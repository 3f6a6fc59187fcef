"""Traces that somebody else's program has recorded, read as what the simulator predicts: one step, rank by rank."""
