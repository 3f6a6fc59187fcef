"""Training that goes on when ranks come and go: agents, rounds, state for another number of ranks, checkpoints."""
