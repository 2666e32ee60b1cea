"""`ddlbench site init`: ask what only the user knows, and write a site file with what SLURM says.

Each question has an answer that SLURM already suggests. Values in the file are as a YAML writer
writes them, with a remark beside each key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import click
import yaml

from ddlbench.cluster.kind_choice import (
    CELL_TIMEOUT_S,
    STAGE_TIMEOUT_S,
    Offer,
    Selection,
    fitting_accounts,
    labels,
    of_gpu,
    offers_of,
    partition_lines,
    select,
)
from ddlbench.common.document import parse_yaml, write_text
from ddlbench.common.errors import ConfigError, file_fault, printable
from ddlbench.common.quantities import counted
from ddlbench.common.screen import paragraph
from ddlbench.experiment.site import parse_site, site_file
from ddlbench.interconnect.nvidia_programs import P2P, state_of_p2p
from ddlbench.planning.budget import SPARE_MINUTES, timeouts_within
from ddlbench.slurm.partition_limits import PartitionLimits, partition_limits
from ddlbench.slurm.partitions import (
    NodeKind,
    accounts,
    holds,
    in_words,
    is_plain,
    node_kinds,
    unusable_in,
)

_SPARE_MEMORY = 0.9
_WIDTH = 100
_REMARKS_AT = 32
# A text that every reader of YAML takes for one, also those of YAML 1.2; to some, y is a boolean.
_WORD = re.compile(r"(?![YyNn]\Z)[A-Za-z_$/][A-Za-z0-9_./$-]*")


@dataclass(frozen=True)
class Answers:
    """What the user chose.

    Args:
        name: of the site; the file's name.
        selection: kind of node, and what a site of it says.
        account: to charge; None for none.
        scratch: node-local folder.
        interface: network interface; None lets libraries choose.
    """

    name: str
    selection: Selection
    account: str | None
    scratch: str
    interface: str | None


def site_text(answers: Answers) -> str:
    """The site file."""
    chosen = answers.selection
    kind, devices = chosen.offer.kind, chosen.devices_per_node
    on_gpus = chosen.device == "cuda"
    # A slice's part of the node is small however few slices of it work.
    parts = kind.gpus_of(None) if chosen.offer.is_slice else devices
    memory_mb = int((chosen.memory_mb or 0) * _SPARE_MEMORY / parts) or None
    limit_s = kind.time_limit_s
    stage_s, cell_s = timeouts_within(limit_s, STAGE_TIMEOUT_S, CELL_TIMEOUT_S)
    limit = "has no limit" if limit_s is None else f"ends jobs after {limit_s / 60:g} min"
    what = chosen.offer.what if on_gpus else counted(devices, "CPU worker")
    if on_gpus and devices != chosen.offer.gpus:
        what = f"{devices} of {what}" if chosen.offer.gpus else counted(devices, "GPU")
    shares = f"{counted(chosen.cpus_per_node, 'core')} of a node, shared by its devices"
    memory = f"{chosen.memory_mb} MB of a node, less a tenth, shared likewise"
    here = f"; here: {','.join(kind.features)}" if kind.features else ""
    constraint = (
        "  constraint",
        chosen.constraint or "a100",
        f"features of the nodes to use{here}",
    )
    lines = [
        "# yaml-language-server: $schema=../schemas/site.json",
        *_comment(
            f"Written by `ddlbench site init` from what SLURM says of partition {kind.partition}; "
            "edit it freely."
        ),
        *_comment(
            "Every key is explained in config/README.md. Check it with "
            f"`ddlbench site doctor --site {answers.name}`."
        ),
        *(line for remark in chosen.remarks for line in _comment(f"Note: {remark}.")),
        "",
        _line("description", f"{answers.name}: {what} a node, partition {kind.partition}"),
        _line("device", chosen.device),
        _line("launcher", "slurm"),
        "",
        _line("nodes", chosen.nodes, f"largest cell: {chosen.text}"),
        _line("devices_per_node", devices),
        _line("cpus_per_device", max(1, chosen.cpus_per_node // parts), shares),
        _line("memory_per_device_mb", memory_mb, memory if memory_mb else "SLURM does not know it"),
        "",
        _line("scratch", answers.scratch),
        _line("keep_data", True, "false if scratch is emptied after each job anyway"),
        _line("interface", answers.interface),
        "",
        *_comment(
            f"A cell's job asks for both and {SPARE_MINUTES} minutes; the partition {limit}."
        ),
        _line("cell_timeout_s", cell_s),
        _line("stage_timeout_s", stage_s, "to make the cell's data"),
        "",
        '# setup: ["module load CUDA/12.4"]       # shell commands before each process starts',
        "# container: {image: /project/you/ddlbench.sif}   # the processes run in this image",
        "# interconnect: {p2p_binary: /path/p2pBandwidthLatencyTest}   # or cuda_samples",
        "",
        "slurm:",
        _line("  account", answers.account),
        _line("  partition", kind.partition),
        _line("  gpu_type", (chosen.offer.gpu_type or None) if on_gpus else None),
        _line("  gres", "gpu" if on_gpus and chosen.offer.gpus else ""),
        _line("  exclusive", True, "whole nodes: no neighbour disturbs a measurement"),
        _line(*constraint) if chosen.constraint else f"  # {_line(*constraint).lstrip()}",
        "  # qos: normal         # quality of service",
        "  # extra: --reservation=NAME            # further sbatch options",
        '  # srun: ["--cpu-bind=cores"]           # options of every srun in a job',
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, remark: str = "") -> str:
    """``key: value  # remark``; a key keeps the spaces before it."""
    style = '"' if isinstance(value, str) and not _WORD.fullmatch(value) else None
    text = yaml.safe_dump(value, default_style=style, width=math.inf, allow_unicode=True)
    entry = f"{key}: {text.strip().removesuffix('...').strip()}"  # "..." ends a document
    return f"{entry.ljust(_REMARKS_AT - 2)}  # {_plain(remark)}" if remark else entry


def _comment(text: str) -> Iterable[str]:
    return wrap(
        _plain(text),
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """Text that a comment may hold: one line, of signs that YAML allows."""
    return " ".join(printable(text).split())


def write_site(answers: Answers, overwrite: bool = False) -> Path:
    """Write ``config/sites/<name>.yaml``, if it is a valid site.

    Raises:
        ConfigError: the file is there already or cannot be written, or what was answered makes no
            valid site. Then nothing is written.
    """
    path = free_site_file(answers.name, overwrite)
    text = site_text(answers)
    try:
        parse_site(parse_yaml(text, str(path)), path)
    except ConfigError as error:
        raise ConfigError(f"no site is written: {error}") from None
    try:
        write_text(path, text)
    except OSError as error:
        why = file_fault(error) or f"{path} cannot be written: {error.strerror}"
        raise ConfigError(why) from None
    return path


def link_test_remarks(chosen: Selection) -> list[str]:
    """Where NVIDIA's test of links between GPUs is on this node, or how to get it."""
    if chosen.device != "cuda" or chosen.devices_per_node < 2:
        return []
    _, says = state_of_p2p({})
    return [f"{P2P} here: {says}"]


def free_site_file(name: str, overwrite: bool = False) -> Path:
    """Where the file of a new site goes.

    Raises:
        ConfigError: it is there already, or the name is none of a site.
    """
    path = site_file(name)
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} is there already; give another name, or --overwrite")
    return path


def interview(
    name: str,
    *,
    partition_name: str | None = None,
    gpu: str | None = None,
    constraint: str | None = None,
    account: str | None = None,
    scratch: str | None = None,
    interface: str | None = None,
    device: str | None = None,
    devices_per_node: int | None = None,
    yes: bool = False,
) -> Answers:
    """Ask for what was not given; with ``yes``, take what is suggested.

    Raises:
        ConfigError: there is no such partition, GPU or feature, nothing to suggest, or no SLURM.
    """
    kinds = node_kinds()
    selection = choose(
        kinds,
        partition_name=partition_name,
        gpu=gpu,
        constraint=constraint,
        device=device,
        devices_per_node=devices_per_node,
        ask=not yes,
        limits_of=partition_limits,
    )
    if account is None:
        types = {gpu_type for kind in kinds for gpu_type, _ in kind.gpus}
        mine = selection.offer.gpu_type if selection.device == "cuda" else None
        known = fitting_accounts(accounts(), mine, types)
        if known:
            account = known[0] if yes or len(known) == 1 else _pick("account", known)
    if scratch is None:
        scratch = "$TMPDIR" if yes else click.prompt("node-local scratch folder", default="$TMPDIR")
    if interface is None and not yes:
        text = click.prompt("network interface between nodes (empty: automatic)", default="")
        interface = text or None
    return Answers(name, selection, account, scratch, interface)


def choose(
    kinds: Sequence[NodeKind],
    *,
    partition_name: str | None = None,
    gpu: str | None = None,
    constraint: str | None = None,
    device: str | None = None,
    devices_per_node: int | None = None,
    ask: bool = False,
    limits_of: Callable[[Sequence[str]], Sequence[PartitionLimits]] = lambda _: (),
) -> Selection:
    """The kind of node that a site is of.

    ``gpu`` is a type of GPU, a part of it, or a feature of untyped ones; a constraint is ``a&b``.
    ``ask`` the user where there is a choice. ``limits_of`` partitions bound what a job may have.

    Raises:
        ConfigError: no node is so, or the best ones take no jobs and their partition is not named.
    """
    if not kinds:
        raise ConfigError("sinfo lists no partition: ask your administrator for access")
    _check_partition(kinds, partition_name)
    here = [kind for kind in kinds if partition_name in (None, kind.partition)]
    if gpu is not None and device == "cpu":
        raise ConfigError("--gpu is for workers on GPUs; leave it out, or write --device cuda")
    offers = offers_of(here, "cuda" if gpu is not None else device)
    if device == "cuda" and not offers and devices_per_node:  # GPUs that SLURM does not count
        offers = offers_of(here, None)
    if not offers:
        where = f" in partition {partition_name}" if partition_name else ""
        raise ConfigError(
            f"SLURM counts no GPUs{where}; name another partition, or write --devices-per-node if "
            "its nodes have some"
        )
    if gpu is not None:
        offers, feature = of_gpu(offers, gpu)
        constraint = "&".join(part for part in (feature, constraint) if part) or None
    offers = _with_features(offers, constraint)
    offers = _with_devices(offers, devices_per_node)
    for line in partition_lines(here, offers):
        click.echo("\n".join(paragraph(line, indent="  ", hanging="    ")))
    if partition_name is None:
        offers = _of_one_partition(kinds, offers, ask)
    mine = [offer for offer in offers if offer.kind.partition == offers[0].kind.partition]
    offer = _ask_offer(mine) if ask and len(mine) > 1 else mine[0]
    return select(
        offer,
        kinds,
        device=device or ("cpu" if offer.gpu_type is None else "cuda"),
        devices_per_node=devices_per_node,
        constraint=constraint,
        limits=next(iter(limits_of([offer.kind.partition])), None),
    )


def _check_partition(kinds: Sequence[NodeKind], name: str | None) -> None:
    names = list(dict.fromkeys(kind.partition for kind in kinds if kind.nodes))
    if not names:
        raise ConfigError("no partition has a node; ask your administrator")
    if name is not None and name not in names:
        empty = any(kind.partition == name for kind in kinds)
        what = f"partition {name!r} has no nodes" if empty else f"there is no partition {name!r}"
        raise ConfigError(f"{what}; write one of {', '.join(names)}")


def _with_features(offers: list[Offer], constraint: str | None) -> list[Offer]:
    if constraint is None:
        return offers
    if not is_plain(constraint):
        raise ConfigError(
            f"--constraint {constraint}: write one feature, or several as a&b; others go into the "
            "site's file"
        )
    held = [offer for offer in offers if holds(constraint, offer.kind.all_features)]
    if not held:
        features = sorted({f for offer in offers for f in offer.kind.all_features})
        listed = f"write one of {', '.join(features)}" if features else "nodes have no features"
        raise ConfigError(f"--constraint {constraint}: no such node has it; {listed}")
    return held


def _with_devices(offers: list[Offer], devices: int | None) -> list[Offer]:
    enough = [o for o in offers if devices is None or not o.gpus or o.gpus >= devices]
    if not enough:
        most = max(offers, key=lambda offer: offer.gpus)
        raise ConfigError(
            f"--devices-per-node {devices}: no such node has as many; write at most {most.gpus}, "
            f"of {most.what} in partition {most.kind.partition}"
        )
    return enough


def _of_one_partition(kinds: Sequence[NodeKind], offers: list[Offer], ask: bool) -> list[Offer]:
    """Offers of the partition that the user picks, or of the best one."""
    if ask:
        names = list(dict.fromkeys(offer.kind.partition for offer in offers))
        wanted = _pick("partition", names, suggested=offers[0].is_ready)
        return [offer for offer in offers if offer.kind.partition == wanted]
    if not offers[0].is_ready:
        reasons = []
        for name in dict.fromkeys(offer.kind.partition for offer in offers):
            here = [kind for kind in kinds if kind.partition == name]
            why = in_words(unusable_in(here)) if here[0].is_up else "down"
            reasons.append(f"{name}: {why}")
        raise ConfigError(
            f"no such node takes jobs now ({'; '.join(reasons)}); wait, or name one of them with "
            "--partition"
        )
    return offers


def _ask_offer(offers: list[Offer]) -> Offer:
    """One of several kinds of node in a partition, by its number or its type."""
    texts = labels(offers)
    for number, text in enumerate(texts, 1):
        click.echo("\n".join(paragraph(f"{number}  {text}", indent="  ", hanging="     ")))

    def read(answer: str) -> Offer:
        if answer.isdigit() and 1 <= int(answer) <= len(offers):
            return offers[int(answer) - 1]
        named = [offer for offer in offers if answer.lower() == (offer.gpu_type or "").lower()]
        if len(named) != 1:
            raise click.UsageError(f"write a number from 1 to {len(offers)}")
        return named[0]

    chosen: Offer = click.prompt("kind of node", default="1", value_proc=read)
    return chosen


def _pick(what: str, options: list[str], suggested: bool = True) -> str:
    default = options[0] if suggested else None
    answer: str = click.prompt(what, type=click.Choice(options), default=default)
    return answer
