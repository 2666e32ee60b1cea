"""Fully sharded data parallelism by torch's ``fully_shard``."""
