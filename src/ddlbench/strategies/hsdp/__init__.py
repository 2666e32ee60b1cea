"""Hybrid sharding: groups of ranks share the weights, and groups have copies of them."""
