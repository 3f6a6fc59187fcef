"""The parts of the course's models, in the order in which they are called."""
