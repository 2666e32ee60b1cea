"""The site file by which ddlbench knows the test bed."""

from __future__ import annotations

from .layout import SCRATCH
from .options import Options


def site_text(options: Options) -> str:
    """Contents of ``config/sites/testbed.yaml`` for a bed of these options."""
    traits = [f"{options.nodes} x {options.devices} virtual devices"]
    if options.cpu_share is not None:
        traits.append(f"{options.cpu_share:g} core a device")
    if options.bandwidth is not None:
        traits.append(f"{options.bandwidth} links")
    return f"""\
# yaml-language-server: $schema=../schemas/site.json
# A test bed on one machine (docs/failures.md); written by `testbed site`.
description: "test bed: {", ".join(traits)}"
device: cpu
launcher: slurm
nodes: {options.nodes}
devices_per_node: {options.devices}
cpus_per_device: {options.cpus_per_device}
memory_per_device_mb: null
scratch: {SCRATCH}
keep_data: true
interface: eth0
cell_timeout_s: 1800
slurm:
  account: null
  partition: gpu
  gres: gpu
  gpu_type: null
  exclusive: false
"""
