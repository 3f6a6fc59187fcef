"""Each technique for training large models, minimal and runnable, on laptop CPU ranks or many GPUs."""
