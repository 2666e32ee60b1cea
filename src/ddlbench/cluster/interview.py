"""The questions of `ddlbench init`: each with an answer that SLURM already suggests."""

from __future__ import annotations

import click

from ddlbench.cluster.init import Answers
from ddlbench.cluster.query import Partition, accounts, partitions
from ddlbench.experiment.errors import ConfigError

__all__ = ["interview"]


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
