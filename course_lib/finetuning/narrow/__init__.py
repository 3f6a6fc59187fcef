"""The narrow networks of side tuning that stand beside a decoder, and how any of them passes through a pipeline."""
