"""`ddlbench init`: ask what only the user knows, and write a site file with what SLURM says.

Each question has an answer that SLURM already suggests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from ddlbench.experiment.document import write_text
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import load_site
from ddlbench.planning.resources import SPARE_MINUTES, timeouts_within
from ddlbench.slurm.partitions import Partition, accounts, partitions

_STAGE_TIMEOUT_S = 1800
_CELL_TIMEOUT_S = 3600
_SPARE_MEMORY = 0.9


@dataclass(frozen=True)
class Answers:
    """What the user chose.

    Args:
        name: of the site; the file's name.
        partition: the kind of node to use.
        account: to charge; None for none.
        scratch: node-local folder.
        interface: network interface; None lets libraries choose.
        device: "cuda" or "cpu".
        devices_per_node: workers of a node.
        max_nodes: largest cell.
    """

    name: str
    partition: Partition
    account: str | None
    scratch: str
    interface: str | None
    device: str
    devices_per_node: int
    max_nodes: int


def site_text(answers: Answers) -> str:
    """The site file, with a remark beside every key."""
    partition = answers.partition
    cpus = max(1, partition.cpus_per_node // answers.devices_per_node)
    memory_mb = int(partition.memory_mb * _SPARE_MEMORY / answers.devices_per_node)
    limit_s = partition.time_limit_s
    stage_s, cell_s = timeouts_within(limit_s, _STAGE_TIMEOUT_S, _CELL_TIMEOUT_S)
    limit = "has no limit" if limit_s is None else f"ends jobs after {limit_s / 60:g} min"
    features = f"; here: {partition.features}" if partition.features else ""
    what = f"{partition.gpus_per_node}x {partition.gpu_type or 'GPU'}"
    if answers.device == "cpu":
        what = f"{answers.devices_per_node} CPU workers"
    return f"""\
# Written by `ddlbench init` from what SLURM says of partition {partition.name}; edit it freely.
# Every key is explained in config/README.md. Check it with `ddlbench doctor --site {answers.name}`.

description: "{answers.name}: {what} a node, partition {partition.name}"
device: {answers.device}
launcher: slurm

nodes: {answers.max_nodes}                # largest cell; the partition has {partition.nodes}
devices_per_node: {answers.devices_per_node}
cpus_per_device: {cpus}      # {partition.cpus_per_node} cores of a node, shared by its devices
memory_per_device_mb: {memory_mb}   # {partition.memory_mb} MB of a node, less a tenth

scratch: {answers.scratch}
keep_data: true         # false if scratch is emptied after each job anyway
interface: {answers.interface or "null"}

# A cell's job asks for both and {SPARE_MINUTES} minutes; the partition {limit}.
cell_timeout_s: {cell_s}
stage_timeout_s: {stage_s}   # to make the cell's data

# setup: ["module load CUDA/12.4"]       # shell commands before each process starts
# container: {{image: /project/you/ddlbench.sif}}   # the processes run in this image
# interconnect: {{p2p_binary: /path/p2pBandwidthLatencyTest}}   # or cuda_samples: its checkout

slurm:
  account: {answers.account or "null"}
  partition: {partition.name}
  gpu_type: {(partition.gpu_type or "null") if answers.device == "cuda" else "null"}
  gres: "{partition.gres if partition.gpus_per_node else ""}"
  exclusive: true       # whole nodes: no neighbour disturbs a measurement
  # qos: normal         # quality of service
  # constraint: a100    # features of the nodes to use{features}
  # extra: --reservation=NAME            # further sbatch options
  # srun: ["--cpu-bind=cores"]           # options of every srun in a job
"""


def write_site(answers: Answers, overwrite: bool = False) -> Path:
    """Write ``config/sites/<name>.yaml`` and read it back.

    Raises:
        ConfigError: the file is there already, or what was answered makes no valid site.
    """
    path = project_root() / "config" / "sites" / f"{answers.name}.yaml"
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; give another name, or --overwrite")
    write_text(path, site_text(answers))
    load_site(answers.name)
    return path


def interview(
    name: str,
    *,
    partition_name: str | None = None,
    account: str | None = None,
    scratch: str | None = None,
    interface: str | None = None,
    device: str | None = None,
    devices_per_node: int | None = None,
    yes: bool = False,
) -> Answers:
    """Ask for what was not given; with ``yes``, take what is suggested.

    Raises:
        ConfigError: there is no such partition, or no SLURM.
    """
    partition = _choose(partitions(), partition_name, ask=not yes)
    known = accounts()
    if account is None and known:
        account = known[0] if yes or len(known) == 1 else _pick("account", known)
    device = device or ("cuda" if partition.gpus_per_node else "cpu")
    devices = devices_per_node or partition.gpus_per_node or partition.cpus_per_node
    if scratch is None:
        scratch = "$TMPDIR" if yes else click.prompt("node-local scratch folder", default="$TMPDIR")
    if interface is None and not yes:
        text = click.prompt("network interface between nodes (empty: automatic)", default="")
        interface = text or None
    return Answers(
        name=name,
        partition=partition,
        account=account,
        scratch=scratch,
        interface=interface,
        device=device,
        devices_per_node=devices,
        max_nodes=partition.nodes,
    )


def _choose(found: list[Partition], wanted: str | None, ask: bool) -> Partition:
    if not found:
        raise ConfigError("sinfo lists no partition: ask your administrator for access")
    names = list(dict.fromkeys(p.name for p in found))
    if wanted is None:
        for p in found:
            gpus = f"{p.gpus_per_node} {p.gpu_type or 'GPU'}" if p.gpus_per_node else "no GPU"
            click.echo(f"  {p.name}: {p.nodes} node(s), {gpus}, {p.cpus_per_node} cores a node")
        wanted = _pick("partition", names) if ask else names[0]
    for p in found:
        if p.name == wanted:
            return p
    raise ConfigError(f"there is no partition {wanted!r}; write one of {', '.join(names)}")


def _pick(what: str, options: list[str]) -> str:
    answer: str = click.prompt(what, type=click.Choice(options), default=options[0])
    return answer
