"""``python -m course_lib.comparison.finetuning``: see ``course_lib.comparison.finetuning.cli``."""

from course_lib.comparison.finetuning.cli import main

if __name__ == "__main__":
    main(prog_name="python -m course_lib.comparison.finetuning")
