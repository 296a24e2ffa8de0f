"""Model definitions and their loaders: from the files of a checkpoint to something that a worker can run."""
