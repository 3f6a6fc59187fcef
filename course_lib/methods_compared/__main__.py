"""``python -m course_lib.methods_compared``: see ``course_lib.methods_compared.cli``."""

from course_lib.methods_compared.cli import main

if __name__ == "__main__":
    main(prog_name="python -m course_lib.methods_compared")
