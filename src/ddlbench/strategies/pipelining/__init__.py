"""Synchronous pipelines of torch.distributed.pipelining: GPipe, 1F1B, interleaved, zero bubble."""
