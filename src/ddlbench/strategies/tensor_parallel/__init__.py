"""Tensor parallelism of linear layers, as in Megatron-LM, by torch's DTensor."""
