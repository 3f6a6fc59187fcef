"""What a job trains and on what: a random model, pretrained weights, samples."""
