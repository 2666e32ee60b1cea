"""The networks of DDLBench as flat sequences of named blocks, the same for every strategy.

``build("resnet50", DATASETS["imagenet"], seed=1)`` returns an ``nn.Sequential`` whose every
element takes one tensor and returns one tensor, so that it can be cut between any two.
"""

from ddlbench.networks.factory import build, num_parameters, without_dropout

__all__ = ["build", "num_parameters", "without_dropout"]
