"""Writes the devices that ``config/sites/accelerators.yaml`` can emulate, from measured profiles.

    python validation/accelerators.py one-core results/local/profiles
    python validation/accelerators.py pipedream tests/unit/planning/pipedream_vgg16_graph.txt

``one-core`` keeps the profiles of a CPU site. The sixteen blocks of ``stack`` are one code, so each
takes their mean. ``pipedream`` is the VGG-16 profile that the authors of PipeDream published
(github.com/msr-fiddle/pipedream, profiler/image_classification/profiles/vgg16): milliseconds of one
GPU at a mini-batch of 128 images of ImageNet. Other batch sizes are in proportion.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ddlbench.experiment.paths import project_root
from ddlbench.experiment.profile import (
    BatchTime,
    BlockProfile,
    LayerProfile,
    ParameterTensor,
    Profile,
    ProfileKey,
    read_profile,
    write_profile,
)

_PIPEDREAM_BATCH = 128
_FLOAT32_BYTES = 4


def main() -> None:
    """Write the profiles of one accelerator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("accelerator", choices=["one-core", "pipedream"])
    parser.add_argument("source", type=Path)
    arguments = parser.parse_args()
    made = {"one-core": _of_site, "pipedream": _of_pipedream}[arguments.accelerator]
    folder = project_root() / "config" / "accelerators" / arguments.accelerator
    for profile in made(arguments.source):
        path = folder / profile.profile_id / "profile.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_profile(path, replace(profile, site=arguments.accelerator))
        print(path)


def _of_site(profiles: Path) -> Iterator[Profile]:
    """Blocks, layers and tensors of measured profiles, without what belongs to their machine."""
    for path in sorted(profiles.glob("*/*/*/profile.json")):
        profile = read_profile(path)
        blocks = profile.blocks
        if profile.network == "stack":
            blocks = _equal(blocks)
        kept = ("cpu_model", "created", "git_commit", "method", "stretch")
        yield replace(
            profile,
            steps=(),
            layers=tuple(_without_intervals(layer) for layer in profile.layers),
            blocks=tuple(_without_intervals(block) for block in blocks),
            node_slowdown=(),
            notes=(),
            provenance={name: profile.provenance[name] for name in kept},
        )


def _without_intervals(entry: Any) -> Any:
    return replace(
        entry,
        forward=tuple(replace(time, interval_s=None) for time in entry.forward),
        backward=tuple(replace(time, interval_s=None) for time in entry.backward),
    )


def _equal(blocks: tuple[BlockProfile, ...]) -> tuple[BlockProfile, ...]:
    """The blocks, where each of the stack's repeated ones takes the mean of all of them."""
    repeated = [block for block in blocks if block.name.startswith("block_")]

    def mean(passes: list[tuple[BatchTime, ...]]) -> tuple[BatchTime, ...]:
        return tuple(
            replace(same[0], time_s=fmean(time.time_s for time in same))
            for same in zip(*passes, strict=True)
        )

    forward = mean([block.forward for block in repeated])
    backward = mean([block.backward for block in repeated])
    return tuple(
        replace(block, forward=forward, backward=backward) if block in repeated else block
        for block in blocks
    )


def _published_nodes(graph: Path) -> list[dict[str, str]]:
    """The nodes of a ``graph.txt`` by number: kind of layer, and the fields as it names them."""
    nodes: dict[int, dict[str, str]] = {}
    for line in graph.read_text("utf-8").splitlines():
        if described := re.match(r"node(\d+) -- (\w+).* -- (forward_compute_time.*)", line):
            fields = dict(re.findall(r"(\w+)=([\d.]+)", described[3]))
            nodes[int(described[1])] = {"layer": described[2], **fields}
    return [nodes[number] for number in sorted(nodes)]


def _of_pipedream(graph: Path) -> Iterator[Profile]:
    """PipeDream's nodes 2 to 41 are the 40 blocks of VGG-16, in order."""
    nodes = _published_nodes(graph)
    names = [*(f"features_{number}" for number in range(31)), "avgpool", "flatten"]
    names += [f"classifier_{number}" for number in range(7)]
    entering = float(nodes[0]["activation_size"])
    blocks: list[BlockProfile] = []
    layers: list[LayerProfile] = []
    tensors: list[ParameterTensor] = []
    whole_s = sum(float(node["backward_compute_time"]) for node in nodes)
    ready_s = 0.0
    for index, (name, node) in enumerate(zip(names, nodes[1:], strict=True)):
        leaving = float(node["activation_size"])
        if node["layer"] == "Size":  # reads a shape; the tensor goes on as it is
            leaving = entering
        shared: dict[str, Any] = {
            "parameter_bytes": int(float(node["parameter_size"])),
            "output_bytes_per_sample": leaving / _PIPEDREAM_BATCH,
            "saved_bytes_per_sample": entering / _PIPEDREAM_BATCH,
            "forward": _proportional(float(node["forward_compute_time"])),
            "backward": _proportional(float(node["backward_compute_time"])),
        }
        blocks.append(
            BlockProfile(
                block=index,
                name=name,
                buffer_bytes=0,
                input_bytes_per_sample=entering / _PIPEDREAM_BATCH,
                **shared,
            )
        )
        layers.append(
            LayerProfile(name=name, block=index, block_name=name, kind=node["layer"], **shared)
        )
        entering = leaving
    for block in reversed(blocks):
        ready_s += block.backward[-1].time_s * 1e3
        if block.parameter_bytes:
            ready = min(1.0, ready_s / whole_s)
            tensors.append(
                ParameterTensor(f"{block.name}.weight", block.block, block.parameter_bytes, ready)
            )
    key = ProfileKey("imagenet", "vgg16")
    yield Profile(
        site="pipedream",
        profile_id=key.id,
        dataset=key.dataset,
        network=key.network,
        precision=key.precision,
        threads_per_device=key.threads_per_device,
        device_kind="cpu",
        batch_sizes=(_PIPEDREAM_BATCH,),
        steps=(),
        layers=tuple(layers),
        blocks=tuple(blocks),
        tensors=tuple(tensors),
        node_slowdown=(),
        fixed_memory_bytes=0,
        notes=(),
        provenance={"method": "published with PipeDream (Narayanan et al., SOSP 2019)"},
    )


def _proportional(milliseconds: float) -> tuple[BatchTime, ...]:
    """Times in proportion to the batch, through the one that was published."""
    return tuple(
        BatchTime(size, milliseconds / 1e3 * size / _PIPEDREAM_BATCH, None)
        for size in (1, _PIPEDREAM_BATCH)
    )


if __name__ == "__main__":
    main()
