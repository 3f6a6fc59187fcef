"""The ledger of placement: what the tensors of a step are on each rank, beside one device's."""
