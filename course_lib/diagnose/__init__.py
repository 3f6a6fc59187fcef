"""The ledger of placement, and the causes in it: a step on one device beside the same step on several ranks."""
