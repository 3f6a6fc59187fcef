"""Training steps of many styles, each right, and each with faults that public threads tell of."""
