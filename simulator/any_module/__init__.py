"""What a module costs that is no transformer: a ``TracedModel`` under a plan, by its memory and its time, and
``price`` for whatever a planner is given."""
