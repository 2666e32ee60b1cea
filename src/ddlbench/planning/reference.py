"""Tables of the documents: datasets, axes of a matrix, options of strategies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import NETWORKS, STRATEGIES
from ddlbench.experiment.units import GB, MB, unit_for
from ddlbench.planning.strategy import strategy_of


def dataset_table() -> str:
    """One row a built-in dataset, as Markdown; its size is that of all decoded images."""
    lines = [
        "| dataset | images (train / val) | classes | image | native format | decoded |",
        "|---|---:|---:|---|---|---:|",
    ]
    for spec in DATASETS.built_in.values():
        image = "x".join(map(str, spec.shape))
        size_bytes = (spec.num_train + spec.num_val) * spec.image_bytes
        size = unit_for(size_bytes, (GB, MB)).text(size_bytes, ".0f")
        lines.append(
            f"| `{spec.name}` | {spec.num_train:,} / {spec.num_val:,} | {spec.num_classes} "
            f"| {image} | `{spec.native_format}` | {size} |"
        )
    return "\n".join(lines)


def axis_table() -> str:
    """The values of the axes of a matrix, as Markdown."""
    datasets = ", ".join(
        f"`{spec.name}`{' (volumes)' if spec.depth else ''}" for spec in DATASETS.built_in.values()
    )
    return "\n".join(
        [
            "| axis | values |",
            "|---|---|",
            f"| `dataset` | {datasets} |",
            f"| `network` | {_names(NETWORKS.built_in)}, or `package.module:callable` |",
            f"| `strategy` | {_names(STRATEGIES)}, or `package.module:Class`. Keep `sequential`: "
            "it is the base of every speed-up |",
            "| `geometry` | `<nodes>x<devices per node>`, for example `1x4` or `2x4` |",
        ]
    )


def option_table() -> str:
    """One row an option, as Markdown; strategies that share an option share the row."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for strategy in STRATEGIES:
        for option, schema in strategy_of(strategy).options.items():
            default = json.dumps(schema["default"]).strip('"')
            rows.setdefault((option, default, _meaning(schema)), []).append(strategy)
    lines = ["| strategy | option | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| {_names(strategies)} | `{option}` | `{default}` | {meaning} |"
        for (option, default, meaning), strategies in rows.items()
    ]
    without = [name for name in STRATEGIES if not strategy_of(name).options]
    return "\n".join([*lines, "", f"Without options: {_names(without)}."])


def _meaning(schema: dict[str, Any]) -> str:
    values = f"; one of {_names(map(str, schema['enum']))}" if "enum" in schema else ""
    return schema["description"].rstrip(".") + values


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
