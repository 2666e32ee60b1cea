"""The networks of DDLBench as flat sequences of named blocks, the same for every strategy.

``build("resnet50", DATASETS["imagenet"], seed=1)`` returns an ``nn.Sequential`` whose every
element takes one tensor and returns one tensor, so that it can be cut between any two.
"""

from ddlbench.networks.factory import block_names, build, num_parameters, without_dropout
from ddlbench.networks.flat import flat_state_dict

__all__ = ["block_names", "build", "flat_state_dict", "num_parameters", "without_dropout"]
