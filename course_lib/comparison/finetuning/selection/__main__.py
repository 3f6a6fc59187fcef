"""``python -m course_lib.comparison.finetuning.selection``: see ``course_lib.comparison.finetuning.selection.cli``."""

from course_lib.comparison.finetuning.selection.cli import main

if __name__ == "__main__":
    main(prog_name="python -m course_lib.comparison.finetuning.selection")
