"""A made-up network and platform whose terms can be worked by hand."""

from dataclasses import replace

from ddlbench.predict.constants import Constant
from ddlbench.predict.hardware import Level, Platform, TrainedDevice, Way, Ways
from ddlbench.predict.paradl.configuration import configuration_of
from ddlbench.predict.paradl.workload import Layer, Workload

NODE, NET = (1e-5, 1e10), (1e-4, 1e9)
"""Latency (s) and bandwidth (bytes/s) inside a node of 2 devices and between nodes."""

LAYERS = (
    Layer("c1", "conv", (3, 8, 8), (4, 8, 8), 112, 3, 1),  # |x| 192, |y| 256
    Layer("c2", "conv", (4, 8, 8), (8, 4, 4), 296, 3, 2),  # |x| 256, |y| 128
    Layer("fc", "linear", (8, 4, 4), (10, 1, 1), 1290),
)
WEIGHTS = 112 + 296 + 1290
TIMES = (0.01, 0.02, 0.03)


def workload(**changes):
    made = Workload("tiny", "made-up", 1000, sum(TIMES), LAYERS, 2, TIMES)
    return replace(made, **changes)


def platform(gradients=None, memory_bytes=1e9, **constants):
    fitted = {
        "ring_efficiency": 0.5,
        "contention": 1.0,
        "activation_efficiency": 1.0,
        "staged_bytes_per_s": 1e8,
        "layer_overhead_s": 1e-6,
        **constants,
    }
    levels = tuple(
        Level(name=name, largest_ring=ring, latency_s=at, bandwidth_bytes_per_s=rate, source="")
        for name, ring, (at, rate) in (("node", 2, NODE), ("net", 64, NET))
    )
    return Platform(
        description="made-up",
        devices_per_node=2,
        device=TrainedDevice(memory_bytes=memory_bytes, flops_per_s=1e12, memory_bytes_per_s=1e9),
        levels=levels,
        paths=Ways(host=Way(latency_s=2e-5, bandwidth_bytes_per_s=5e9, source="")),
        gradients=gradients or {},
        constants={
            name: Constant(value=value, prior=value, meaning=name) for name, value in fitted.items()
        },
    )


def ask(strategy, devices, batch, segments=None):
    return configuration_of(strategy, devices, 2, batch, segments)
