"""The text of a site file: values as a YAML writer writes them, with a remark beside each key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import yaml

from ddlbench.cluster.kind_choice import CELL_TIMEOUT_S, STAGE_TIMEOUT_S, Selection
from ddlbench.common.errors import printable
from ddlbench.planning.resources import SPARE_MINUTES, timeouts_within

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
    what = chosen.offer.what if on_gpus else f"{devices} CPU workers"
    if on_gpus and devices != chosen.offer.gpus:
        what = f"{devices} of {what}" if chosen.offer.gpus else f"{devices} GPUs"
    shares = f"{chosen.cpus_per_node} cores of a node, shared by its devices"
    memory = f"{chosen.memory_mb} MB of a node, less a tenth, shared likewise"
    here = f"; here: {','.join(kind.features)}" if kind.features else ""
    constraint = (
        "  constraint",
        chosen.constraint or "a100",
        f"features of the nodes to use{here}",
    )
    lines = [
        *_comment(
            f"Written by `ddlbench init` from what SLURM says of partition {kind.partition}; "
            "edit it freely."
        ),
        *_comment(
            "Every key is explained in config/README.md. Check it with `ddlbench doctor --site "
            f"{answers.name}`."
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
    """Lines of a comment."""
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
