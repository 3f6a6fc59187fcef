"""``python -m course_lib.profile``: what each module of a model computes, takes and holds."""
