"""``python -m course_lib.train``: one entry that trains every model of the course under every plan."""
