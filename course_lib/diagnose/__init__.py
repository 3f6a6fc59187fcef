"""The ledger of placement, and the causes in it: a step on one device beside the same step on several ranks."""

from course_lib.diagnose.run import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
