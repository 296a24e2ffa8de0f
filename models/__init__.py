"""Model definitions and their loaders: from the files of a checkpoint to something that a worker can run.

Nothing is imported here: torch comes with those models alone that compute with it.
"""
