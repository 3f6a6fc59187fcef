"""A learner's way through the course: points, hints, what is next, an answer put back, a new version."""
