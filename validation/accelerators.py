"""Writes the shipped devices of ``config/accelerators/`` anew, with ``ddlbench site accelerator``.

    python validation/accelerators.py one-core local
    python validation/accelerators.py pipedream pipedream/profiler/image_classification/profiles
    python validation/accelerators.py scaled-core local

``one-core`` takes the profiles of a CPU site. The sixteen blocks of ``stack`` are one code, so each
takes their mean. ``pipedream`` takes ``graph.txt`` files of a clone of
github.com/msr-fiddle/pipedream: one GPU, mini-batches of 256 (AlexNet, ResNet-18), 128 (VGG-16,
ResNet-50) and 64 (ResNet-101) images of ImageNet. ``scaled-core`` is a core again, made as fast as
that GPU: every time is divided by what ResNet-50 takes of an image of ImageNet on the core, over
what it takes on the GPU. It stands in for a GPU where a study's networks have no profile of one.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from ddlbench.cli import commands
from ddlbench.common.fits import Timing
from ddlbench.planning.device_folder import (
    Device,
    device_folder,
    device_of_profiles,
    made_faster,
    measured_profiles,
    tables_of_profiles,
    write_device,
    write_tables,
)
from ddlbench.planning.device_table import DeviceTable, read_table

_STACK = ("cifar10", "stack")
_STUDY_DATASETS, _STUDY_NETWORKS = ("mnist", "imagenet"), ("mlp", "mobilenetv2", "resnet50")
_SCALE = ("imagenet", "resnet50")  # of which both a core and a GPU have a table
_NETWORKS = ("alexnet", "vgg16", "resnet18", "resnet50", "resnet101")
_PIPEDREAM = {
    "description": "one GPU of PipeDream's authors; the release does not name it",
    "source": "PipeDream (Narayanan et al., SOSP 2019), github.com/msr-fiddle/pipedream, "
    "profiler/image_classification/profiles/<network>/graph.txt",
    "licence": "MIT",
}


def main() -> None:
    """Write one device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", choices=["one-core", "pipedream", "scaled-core"])
    parser.add_argument("source", help="a site, or a folder of <network>/graph.txt")
    arguments = parser.parse_args()
    write = {"one-core": _of_site, "pipedream": _of_graphs, "scaled-core": _of_scaled_site}
    write[arguments.device](arguments.source)


def _of_site(site: str) -> None:
    profiles = measured_profiles(site)
    tables = tables_of_profiles(profiles)
    if _STACK in tables:
        tables[_STACK] = _equal(tables[_STACK])
    folder = device_folder("one-core")
    device = device_of_profiles([profile for _, profile in profiles.values()])
    write_tables(folder, tables, overwrite=True)
    write_device(folder, _core(device))


def _of_scaled_site(site: str) -> None:
    pairs = [(dataset, network) for dataset in _STUDY_DATASETS for network in _STUDY_NETWORKS]
    measured = measured_profiles(site)
    profiles = {pair: measured[pair] for pair in pairs}
    tables = tables_of_profiles(profiles)
    gpu = read_table(device_folder("pipedream") / _SCALE[0] / f"{_SCALE[1]}.csv", _SCALE[0])
    factor = round(_image_s(tables[_SCALE]) / _image_s(gpu), 1)
    folder = device_folder("scaled-core")
    device = device_of_profiles([profile for _, profile in profiles.values()])
    write_tables(
        folder, {pair: table.faster(factor) for pair, table in tables.items()}, overwrite=True
    )
    write_device(folder, made_faster(_core(device), factor))


def _core(device: Device) -> Device:
    """A core of our test machines, as a device."""
    return replace(
        device,
        description=f"one core of our test machines: {device.description}",
        source="profiled by ddlbench, written by validation/accelerators.py",
    )


def _image_s(table: DeviceTable) -> float:
    """Seconds of both passes an image, at the largest batch size of the table."""
    batch_size = table.batch_sizes[-1]
    return sum(table.pass_s(batch_size)) / batch_size


def _equal(table: DeviceTable) -> DeviceTable:
    """The table, where each of the stack's repeated blocks takes the mean of all of them."""
    repeated = [block for block in table.blocks if block.name.startswith("block_")]
    sizes = table.batch_sizes
    forward, backward = (
        Timing.through(
            [(size, fmean(timing.at(size) for timing in timings)) for size in sizes], "stack"
        )
        for timings in (
            [block.forward for block in repeated],
            [block.backward for block in repeated],
        )
    )
    blocks = (
        replace(block, forward=forward, backward=backward) if block in repeated else block
        for block in table.blocks
    )
    return replace(table, blocks=tuple(blocks))


def _of_graphs(folder: str) -> None:
    arguments = [f"--{key}={value}" for key, value in _PIPEDREAM.items()]
    for network in _NETWORKS:
        graph = Path(folder) / network / "graph.txt"
        arguments.append(f"--graph=imagenet/{network}={graph}")
    commands(["site", "accelerator", "pipedream", *arguments, "--overwrite"], standalone_mode=False)


if __name__ == "__main__":
    main()
