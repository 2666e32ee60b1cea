"""Checkpoints: the state of each rank, the sets on disk, and how a cell resumes from a set."""
