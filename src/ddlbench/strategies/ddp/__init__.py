"""torch's DistributedDataParallel."""
