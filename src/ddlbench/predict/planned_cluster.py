"""A cluster that need not exist, as the inputs that rankings read: a site, profiles, links.

::

    hardware   data sheet  --roofline-->  profile of the network      or --profile: of one device
    fabric     latency, rate  --------->  links
    geometry                ----------->  site

Nothing is read from results or written there.

Links are collectives by names and hops by data sheets. The collectives of
:mod:`ddlbench.predict.collective_times` are of whichever group of the cluster's devices; there S is
the whole buffer, and links.json counts what one rank gives to a gather. A hop has the rate of a
device's link, or of its part of the network cards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import Timing
from ddlbench.experiment.cell import OPTIMIZER_STATES, Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.links import Links
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.profile import InvalidProfile, ProfileKey
from ddlbench.experiment.site import Site
from ddlbench.planning.device_folder import read_device
from ddlbench.planning.device_table import DeviceTable, read_table
from ddlbench.planning.layer_table import LayerBlock, layers_of
from ddlbench.planning.partition.profiles import chain_of_blocks
from ddlbench.planning.plan import BlockSource
from ddlbench.planning.workload import FLOAT32_BYTES, Block, Workload
from ddlbench.predict.collective_times import (
    COLLECTIVES,
    MEDIUM,
    MESH_RINGS,
    Groups,
    Library,
    Operation,
    is_mesh,
    seconds,
)
from ddlbench.predict.constants import Array, HeldOut
from ddlbench.predict.hardware import RESERVED_BYTES, DeviceSheet, Fabric, System
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.links import ALL_GATHER, CollectiveTimes, Hop, LinkTable
from ddlbench.predict.prediction import Prediction
from ddlbench.predict.ranking import UNKNOWN, Z90
from ddlbench.predict.roofline import ITEM_BYTES, Layers, passes_s, shipped, update_s

_NOTE = "links are those of data sheets, their collectives those expected by their names"


@dataclass(frozen=True)
class _ExpectedTimes:
    """A :class:`CollectiveTimes` of one group.

    ``copies`` is the whole buffer over a message as links.json counts it.
    """

    group: Groups
    library: Library
    operation: Operation
    copies: int
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        if message_bytes <= 0:
            return 0.0
        whole = np.array([message_bytes * self.copies])
        return float(seconds(self.group, whole, self.library, self.operation)[0])


class PlannedLinks(LinkTable):
    """The links of a system, for whichever group of its devices.

    Groups larger than the system's geometry have the same form. ``library`` has the collectives.
    """

    def __init__(self, system: System, library: Library) -> None:
        nothing = Links(
            site="", fabric="", device_kind="cuda", pairs=(), sweeps=(), notes=(), provenance={}
        )
        super().__init__(nothing, "the data sheets")
        self._system, self._library = system, library

    def hop(self, kind: str, source: tuple[int, int], target: tuple[int, int]) -> tuple[Hop, str]:
        """A device's link, or the network cards that it may use while no other device does."""
        return self._within if source[0] == target[0] else self._between

    @cached_property
    def _within(self) -> tuple[Hop, str]:
        link, nccl = self._system.device.link, self._library
        rings = max(MESH_RINGS.values()) if is_mesh(self._system.device) else 1
        share = nccl.constant("ring_share") / rings
        return Hop(nccl.constant("start_s"), share * link.bytes_per_s), _NOTE

    @cached_property
    def _between(self) -> tuple[Hop, str]:
        fabric, nccl = self._system.fabric, self._library
        if fabric is None:
            return self._within
        rate = nccl.constant("network_share") * fabric.bytes_per_s
        return Hop(nccl.constant("start_s") + fabric.message_s, rate), _NOTE

    def node_bytes_per_s(self, devices_per_node: int) -> float:
        """Bytes per second of all network cards of a node."""
        fabric = self._system.fabric
        if fabric is None:
            return math.inf
        share = self._library.constant("network_share")
        return share * fabric.node_bytes_per_s(devices_per_node)

    def cards(self, devices_per_node: int) -> float:
        """All devices have cards of their own, or those of their node together."""
        fabric = self._system.fabric
        return devices_per_node if fabric is not None and fabric.per == "device" else 1

    def collective(
        self, operation: str, nodes: int, devices_per_node: int, transport: str | None
    ) -> CollectiveTimes:
        """Times of a collective of all ranks of a geometry; messages as links.json counts them."""
        system = replace(self._system, nodes=nodes, devices_per_node=devices_per_node)
        if nodes == 1:
            system = replace(system, fabric=None)
        ranks = nodes * devices_per_node
        times = _ExpectedTimes(
            Groups.of_system(system),
            self._library,
            cast(Operation, operation),
            ranks if operation == ALL_GATHER else 1,
            (_NOTE,),
        )
        return times  # type: ignore[return-value]  # the same two members


_MOST_SIZES = 64


@dataclass(frozen=True)
class Doubt:
    """How wrong predictions of an unmeasured cluster are.

    Args:
        compute: ratio of both ends of the 90 % interval to the middle, of one device's step.
        links: the same of messages.
    """

    compute: float
    links: float

    def spread(self, prediction: Prediction) -> float:
        """Standard deviation of the logarithm of a step; both errors are independent."""
        waits = prediction.exposed_communication_s / prediction.step_s
        return math.hypot((1 - waits) * math.log(self.compute), waits * math.log(self.links)) / Z90


@dataclass(frozen=True)
class PlannedCluster:
    """The question's hardware.

    Args:
        hardware: name of its data sheet.
        device: the data sheet.
        fabric_name: of the fabric between nodes; empty for one node.
        fabric: the same, read.
        nodes, devices_per_node: of the largest geometry.
        library: of collectives.
        profile: folder of a device whose times replace the roofline's; None for none.
    """

    hardware: str
    device: DeviceSheet
    fabric_name: str
    fabric: Fabric | None
    nodes: int
    devices_per_node: int
    library: Library
    profile: Path | None = None

    @classmethod
    def named(
        cls,
        hardware: str,
        fabric: str | None,
        geometries: Iterable[tuple[int, int]],
        profile: str | None = None,
        collectives: str = COLLECTIVES,
    ) -> PlannedCluster:
        """Read the files of the names.

        ``hardware``, ``fabric`` and ``collectives`` may be files, ``profile`` a folder.

        Raises:
            ConfigError: there is no such file, or several nodes have no fabric.
        """
        device = DeviceSheet.named(hardware)
        shapes = list(geometries)
        nodes = max(nodes for nodes, _ in shapes)
        if nodes > 1 and fabric is None:
            raise ConfigError(
                f"--geometry has {nodes} nodes, and --fabric does not say what links them; "
                f"write one of {', '.join(Fabric.names())}"
            )
        library = Library.load(collectives)
        network = (
            None if fabric is None or nodes == 1 else library.with_latency(Fabric.load(fabric))
        )
        folder = None if profile is None else _folder(profile)
        return cls(
            DeviceSheet.name_of(hardware) or Path(hardware).stem,
            device,
            Path(fabric).stem if network and fabric else "",
            network,
            nodes,
            max(devices for _, devices in shapes),
            library,
            folder,
        )

    @property
    def name(self) -> str:
        return f"{self.hardware}-{self.fabric_name}" if self.fabric_name else self.hardware

    @property
    def site(self) -> Site:
        """A site of that many such devices; nothing is started there."""
        return Site(
            name=self.name,
            description=self.device.description,
            device="cuda",
            launcher="slurm",
            nodes=self.nodes,
            devices_per_node=self.devices_per_node,
        )

    @property
    def system(self) -> System:
        return System(self.device, self.fabric, self.nodes, self.devices_per_node)

    @property
    def doubt(self) -> Doubt:
        held_out = shipped().devices
        compute = _ratio(held_out.low, held_out.high)
        if self.profile is not None:
            compute = math.exp(Z90 * UNKNOWN)
        held_out = self._gradients
        return Doubt(compute, _ratio(held_out.low, held_out.high))

    @property
    def _gradients(self) -> HeldOut:
        """Measured over expected seconds of messages of gradients, by 90 % of them."""
        return self.library.intervals[MEDIUM]

    def facts(self) -> list[str]:
        """What answers rest on, a sentence each."""
        held_out = shipped().devices
        if self.profile is None:
            times = (
                "Block times: a roofline of each layer by the data sheet of "
                f"{self.device.description}; measured steps were {held_out.low:.2f} to "
                f"{held_out.high:.2f} of it on {held_out.source}."
            )
        else:
            times = (
                f"Block times: profile of one device, {self.profile.name} "
                f"({read_device(self.profile).description})."
            )
        inside = f"{self.device.link.name} of the data sheet"
        links = f"{inside} and fabric {self.fabric_name}" if self.fabric else inside
        held_out = self._gradients
        tell = f"{self.library.fitted_on} tell" if self.library.of_one_cluster else "names tell"
        return [
            times,
            f"Links: {links}; measured sums of gradients took {held_out.low:.2f} to "
            f"{held_out.high:.2f} of what {tell}. Loading of data is taken to be hidden.",
            *self.library.remarks(self.device, self.fabric_name, self.nodes),
        ]


def _ratio(low: float, high: float) -> float:
    """The wider side of an interval round 1."""
    return max(1 / low, high)


def _folder(profile: str) -> Path:
    known = sorted((project_root() / "config" / "accelerators").glob("*/device.yaml"))
    named = {path.parent.name: path.parent for path in known}
    folder = named.get(profile, Path(profile))
    if not (folder / "device.yaml").is_file():
        raise ConfigError(
            f"--profile {profile!r} is no folder of a device; write one of {', '.join(named)}, or "
            "a folder that `ddlbench site accelerator` has made"
        )
    return folder


class PlannedInputs(Inputs):
    """Profiles and links of a planned cluster.

    ``batch_sizes`` are the samples that devices may get: the batch and its parts.
    """

    def __init__(self, cluster: PlannedCluster, batch_sizes: Iterable[int]) -> None:
        super().__init__(cluster.name, calibrated=False)
        self._cluster = cluster
        self._batch_sizes = sorted(set(batch_sizes))

    def block_source(self, cell: Cell) -> BlockSource:
        """The blocks of its profile, at any number of samples."""
        return lambda samples: chain_of_blocks(self.workload(cell).blocks, samples)

    def missing(self, cell: Cell) -> list[Path]:
        """None: all is computed."""
        return []

    def links(self, cell: Cell) -> LinkTable:
        """The links of the data sheets, whatever the fabric."""
        return self._links_of_sheets

    @cached_property
    def _links_of_sheets(self) -> PlannedLinks:
        return PlannedLinks(self._cluster.system, self._cluster.library)

    def _workload(self, key: ProfileKey) -> Workload:
        device, folder = self._cluster.device, self._cluster.profile
        if folder is None:
            table = roofline_table(device, key, self._batch_sizes)
        else:
            table = self._of_device(folder, key)
        profile = table_profile(device, key, table)
        return Workload(profile, f"profile of {key.network} on {self._cluster.hardware}")

    def _of_device(self, folder: Path, key: ProfileKey) -> DeviceTable:
        precision = read_device(folder).precision
        if key.precision != precision:
            raise InvalidProfile(
                f"profile {folder.name} was timed in {precision}, not {key.precision}; write "
                f"--precision {precision}"
            )
        path = folder / key.dataset / f"{key.network}.csv"
        if not path.is_file():
            raise InvalidProfile(
                f"profile {folder.name} has no {key.network} on {key.dataset}; leave --profile out"
            )
        return read_table(path, key.dataset)


def batch_ladder(batch_size: int, devices: Iterable[int]) -> set[int]:
    """Samples of a pass that strategies may ask for: shares of a batch, and halves of them."""
    sizes = {1, batch_size}
    for count in devices:
        for parts in range(1, count + 1):
            if count % parts == 0 and batch_size % parts == 0:
                sizes.add(batch_size // parts)
    halves = {size >> times for size in sizes for times in range(size.bit_length())}
    return sizes | set(sorted(halves - sizes)[:_MOST_SIZES])


def roofline_table(device: DeviceSheet, key: ProfileKey, batch_sizes: Sequence[int]) -> DeviceTable:
    """The times and bytes of a network's blocks, by the roofline.

    ``batch_sizes`` ascend.

    Raises:
        ConfigError: the device has no such precision, or the network cannot be counted.
    """
    device.peak(key.precision)
    counted = layers_of(key.network, key.dataset)
    layers = Layers.of(counted)
    passes = [passes_s(layers, device, key.precision, size, shipped()) for size in batch_sizes]
    seconds: Array = np.transpose(passes)  # (blocks, both passes, sizes)
    is_half = ITEM_BYTES[key.precision] < FLOAT32_BYTES  # of activations; weights stay float32
    entering = float(DATASETS[key.dataset].input_bytes)
    blocks = []
    for block, of_block in zip(counted, seconds, strict=True):
        forward, backward = (
            Timing.through([*zip(batch_sizes, pass_s.tolist(), strict=True)], block.name)
            for pass_s in of_block
        )
        leaving = float(block.half_output_bytes if is_half else block.output_bytes)
        saved = float(block.half_saved_bytes if is_half else block.saved_bytes)
        weights = sum(block.tensor_bytes)
        held = block.buffer_bytes + _copied_bytes(block, key.precision)
        blocks.append(Block(block.name, weights, held, entering, leaving, saved, forward, backward))
        entering = leaving
    tensors = [{str(i): size for i, size in enumerate(block.tensor_bytes)} for block in counted]
    return DeviceTable(tuple(batch_sizes), tuple(blocks), tuple(tensors))


def _copied_bytes(block: LayerBlock, precision: str) -> int:
    """Of weights in half precision, which autocast makes and the backward pass needs."""
    if ITEM_BYTES[precision] == FLOAT32_BYTES:
        return 0
    multiplied = sum(row.weights * row.times for row in block.operations if row.operations)
    return multiplied * ITEM_BYTES[precision]


def table_profile(device: DeviceSheet, key: ProfileKey, table: DeviceTable) -> dict[str, Any]:
    """A profile as profile.json holds it, from the table of a device.

    The host's part of a step is the update by the roofline.
    """
    blocks = [_entry(place, block, table.batch_sizes) for place, block in enumerate(table.blocks)]
    states = OPTIMIZER_STATES[key.optimizer]
    optimizer_s = update_s(device, table.parameter_bytes, shipped(), states)
    sizes = enumerate(table.batch_sizes)
    return {
        "network": key.network,
        "dataset": key.dataset,
        "device_kind": "cuda",
        "fixed_memory_bytes": RESERVED_BYTES,
        "device_memory_bytes": round(device.memory_bytes),
        "blocks": blocks,
        "layers": [],
        "tensors": _ready(table),
        "node_slowdown": [],
        "steps": [_step(blocks, place, size, optimizer_s) for place, size in sizes],
    }


def _entry(place: int, block: Block, sizes: Iterable[int]) -> dict[str, Any]:
    return {
        "block": place,
        "name": block.name,
        "parameter_bytes": block.parameter_bytes,
        "buffer_bytes": block.buffer_bytes,
        "input_bytes_per_sample": block.input_bytes,
        "output_bytes_per_sample": block.output_bytes,
        "saved_bytes_per_sample": block.saved_bytes,
        "forward": _times((size, block.forward.at(size)) for size in sizes),
        "backward": _times((size, block.backward.at(size)) for size in sizes),
    }


def _times(points: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
    return [{"batch_size": size, "time_s": float(s), "interval_s": None} for size, s in points]


def _ready(table: DeviceTable) -> list[dict[str, Any]]:
    """Weights in the order of a backward pass, each ready when its block is done."""
    backward_s = [block.backward.at(table.batch_sizes[-1]) for block in table.blocks]
    done = [*accumulate(reversed(backward_s))]
    return [
        {
            "name": f"{place}.{name}",
            "block": place,
            "bytes": size,
            "ready_fraction": min(1.0, done_s / (done[-1] or 1.0)),
        }
        for place, done_s in zip(reversed(range(len(done))), done, strict=True)
        for name, size in reversed([*table.parameters[place].items()])
    ]


def _step(
    blocks: list[dict[str, Any]], place: int, size: int, optimizer_s: float
) -> Mapping[str, Any]:
    forward_s, backward_s = (
        sum(block[name][place]["time_s"] for block in blocks) for name in ("forward", "backward")
    )
    return {
        "batch_size": size,
        "count": 1,
        "step_s": forward_s + backward_s + optimizer_s,
        "interval_s": None,
        "load_s": 0.0,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "optimizer_s": optimizer_s,
        "peak_bytes": None,
    }
