"""A site: the machine or cluster that cells run on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import psutil
from annotated_types import Ge, Le

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import Amount, Count, Form, InFile, Name, Positive, read_form, schema_of
from ddlbench.common.quantities import counted
from ddlbench.common.schema import check, nearest, read_yaml
from ddlbench.experiment.automatic_device import automatic_device
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import (
    DATASETS,
    OwnDataset,
    OwnDatasets,
    declare,
    refuse_classes,
)
from ddlbench.experiment.fabric import FOLDER_NAME, LinkCondition, link_schema
from ddlbench.experiment.paths import check_folder_name, project_file
from ddlbench.experiment.status import Reason

_ACCELERATOR = "DDLBENCH_ACCELERATOR"


EMULATED_COMPUTE = "emulated compute"  # begins the name of an emulated processor

ComputeKind = Literal["cpu", "cuda", "emulated"]
"""What computes: cores, GPUs, or emulated accelerators.

Devices of one process compute at once if they are GPUs or emulated, as they work off a queue. A
core computes when its process does, so partitions of one process take turns there.
"""


def is_emulated(processor: str | None) -> bool:
    """Whether a processor of this name is an emulated one."""
    return (processor or "").startswith(EMULATED_COMPUTE)


def shrunk_bytes(size_bytes: int, shrink: float) -> int:
    """A size threshold for tensors that have 1/``shrink`` of their bytes; 0 stays 0.

    Everything that decides by bytes divides by this function: what a rank gives to a library, and
    what a predictor expects of it.
    """
    return max(1, round(size_bytes / shrink)) if size_bytes else 0


_Factor = Annotated[float, Ge(1), Le(1000)]


@dataclass(frozen=True)
class Accelerator(Form):
    """Devices that a site emulates; see :mod:`ddlbench.networks.emulated`.

    :mod:`ddlbench.planning.device_table` reads its tables.

    Both factors keep the shares of computation and messages in a step.
    """

    profiles: Name
    """Folder of the device, `config/accelerators/DEVICE`, with a table `DATASET/NETWORK.csv` for
    each network."""
    slow_down: _Factor = 1.0
    """Computation, emulated links and Horovod's cycle take this many times as long, so that more
    processes fit on few cores."""
    shrink: _Factor = 1.0
    """Tensors of emulated blocks, rates of emulated links, and the sizes at which strategies send
    are divided by this, so that more processes fit into memory and messages cost fewer copies."""

    def table_file(self, dataset: str, network: str) -> Path:
        """Where the table of a network lies; it may not exist."""
        return project_file(f"{self.profiles}/{dataset}/{network.replace(':', '@')}.csv")

    def variables(self) -> dict[str, str]:
        """Environment variables by which :meth:`of_this_process` works in the ranks of a job."""
        return {_ACCELERATOR: json.dumps(vars(self))}

    @classmethod
    def of_this_process(cls) -> Accelerator | None:
        """The accelerator that this rank's devices emulate; None if they are real."""
        encoded = os.environ.get(_ACCELERATOR)
        return cls(**json.loads(encoded)) if encoded else None

    @classmethod
    def slowed(cls, seconds: float) -> float:
        """A time that a library keeps by itself, as slow as this rank's devices.

        Horovod negotiates once a cycle. On devices that are four times slower, cycles of the usual
        length would be four times as many a step, and take as much of this machine's cores.
        """
        accelerator = cls.of_this_process()
        return seconds if accelerator is None else seconds * accelerator.slow_down

    @classmethod
    def shrunk(cls, size_bytes: int) -> int:
        """A size threshold of a strategy or library, divided as the tensors of this rank are."""
        accelerator = cls.of_this_process()
        return size_bytes if accelerator is None else shrunk_bytes(size_bytes, accelerator.shrink)

    @property
    def remark(self) -> str:
        """The name of its processors, and what every result of such a site says."""
        slower = f", {self.slow_down:g} times slower" if self.slow_down != 1 else ""
        smaller = f", 1/{self.shrink:g} of the bytes" if self.shrink != 1 else ""
        return f"{EMULATED_COMPUTE}: times of {Path(self.profiles).name}{slower}{smaller}"

    def supports(self, cell: Cell) -> str | None:
        if cell.precision != "fp32":
            return Reason("precision_unavailable", "emulated accelerators compute in fp32 only")
        if cell.compile:
            return Reason("cannot_compile", "blocks of emulated accelerators compute nothing")
        if cell.validate:
            return Reason("no_validation", "emulated accelerators train no weights to validate")
        if cell.threads_per_device > 1:
            return Reason(
                "no_accelerator_profile",
                f"the emulated accelerator knows no times of {cell.threads_per_device} threads; "
                "write threads_per_device: 1",
            )
        path = self.table_file(cell.dataset, cell.network)
        if not path.is_file():
            return Reason(
                "no_accelerator_profile",
                f"the emulated accelerator has no table {path}; make it from profiles measured on "
                f"the device: ddlbench site accelerator {path.parents[1].name} --site SITE",
            )
        return None


@dataclass(frozen=True, kw_only=True)
class Slurm(Form):
    """What SLURM is asked for."""

    account: str | None = None
    """Account to charge."""
    partition: str | None = None
    """Partition to use."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Node features to ask for."""
    gpu_type: str | None = None
    """GRES type, for example a100 or mi250x."""
    gres: str = "gpu"
    """GRES name of a device; empty asks for none."""
    exclusive: bool = True
    """Ask for whole nodes."""
    extra: str = ""
    """Further sbatch options."""
    srun: tuple[Name, ...] = ()
    """Options of every srun inside a job, of ranks and of staging, for example --cpu-bind=cores."""
    mpi: str | None = None
    """srun's --mpi, for example pmix; Horovod then meets by MPI, if it was built with it."""
    exclude: tuple[Name, ...] = ()
    """Nodes that no job may use, for example [n3, n17]; `ddlbench report` names slow ones."""
    array_tasks: Count = 500
    """At most so many cells of one shape go to SLURM as one job array; 1 submits each alone."""


@dataclass(frozen=True, kw_only=True)
class Container(Form):
    """Image in which the processes of a cell run."""

    image: Name
    """Path of the image, for example $HOME/ddlbench.sif; variables are filled in on the node."""
    program: str = "apptainer"
    """apptainer or singularity."""
    arguments: tuple[str, ...] = ("--nv",)
    """Options of exec: GPUs, folders to bind."""
    python: str = "python3"
    """Python inside the image."""


@dataclass(frozen=True, kw_only=True)
class GivenLink(Form):
    """Speed of one link."""

    latency_s: Amount
    """Seconds until the first byte arrives."""
    bandwidth_bytes_per_s: Positive
    """Bytes per second in one direction; 10 Gbit/s is 1250000000."""


@dataclass(frozen=True, kw_only=True)
class GivenLinks(Form):
    """Speed of each level; a level that the site does not have may be left out."""

    node: GivenLink | None = None
    """Link between devices of one node."""
    network: GivenLink | None = None
    """Between nodes."""
    node_bytes_per_s: Positive | None = None
    """Bytes per second that all devices of a node send to other nodes together."""


@dataclass(frozen=True, kw_only=True)
class Interconnect(Form):
    """How the speed of links is measured."""

    p2p_binary: str | None = None
    """Path of p2pBandwidthLatencyTest on the nodes; empty looks for it in PATH, in the CUDA
    toolkit's folders, and where `make p2p` puts it."""
    cuda_samples: str | None = None
    """Checkout of cuda-samples that holds p2pBandwidthLatencyTest or its source; nvcc builds it
    where no binary is found."""
    nvbandwidth: str | None = None
    """Path of nvbandwidth on the nodes; empty looks for it in PATH. Used where there is no
    p2pBandwidthLatencyTest."""
    largest_bytes: Annotated[int, Ge(4096)] | None = None
    """Largest message of a sweep; empty: 256 MiB on GPUs, 64 MiB on CPUs."""
    budget_s: Positive | None = None
    """Seconds that measuring the links of a fabric should take in all; empty: 160 on one machine,
    where many ranks share its cores, and as long as the sweeps need on a cluster."""
    sweep_budget_s: Positive = 3
    """Seconds one sweep should take (one operation, transport and number of ranks); never more than
    three times as long."""
    links: Mapping[str, GivenLinks] = field(default_factory=dict)
    """Links given by hand, by fabric; such a fabric is not measured."""


_AUTO = {"type": ["integer", "string"], "minimum": 1, "pattern": "^auto$", "default": "auto"}
_DEVICES = {"enum": ["auto", "cpu", "cuda"]}


def _fabrics() -> Mapping[str, Any]:
    conditions = {"propertyNames": FOLDER_NAME, "additionalProperties": link_schema()}
    return {"type": "object", **conditions}


@dataclass(frozen=True, kw_only=True)
class Site:
    """The machine or cluster that cells run on: what a site file says, each key a field."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    name: str
    description: str = ""
    """One line for figure footers, for example "4x V100 a node, 100 Gbit/s"."""
    device: Annotated[Literal["cpu", "cuda"], InFile(_DEVICES)]
    """What a worker computes on. A site that says cuda and finds no GPU is an error; auto takes the
    GPUs that this machine has, else its cores (local sites only)."""
    launcher: Literal["local", "slurm"]
    """How processes start; local on this machine, slurm with srun inside the job."""
    starter: Literal["auto", "torchrun"] = "auto"
    """What starts the ranks: auto is ddlbench itself or srun, torchrun is PyTorch's launcher, once
    on each node. Nodes of emulated fabrics are always started by ddlbench itself."""
    nodes: Count = 1
    """Largest number of nodes one cell may use."""
    devices_per_node: Annotated[int, InFile(_AUTO)]
    """Devices of one node; auto counts the cores this process may use (local CPU sites only). With
    device: auto it counts GPUs, and two ranks share a single GPU."""
    devices_share_gpu: bool = False
    """All devices of a node are its first GPU, so that several ranks run where there is one. Proves
    that strategies work; says nothing of how long devices take beside each other."""
    accelerator: Accelerator | None = None
    """Devices that this machine lacks, emulated: blocks of networks take the time of a device
    instead of computing. Everything else is real. See docs/links.md."""
    cpus_per_device: Count = 1
    """CPU cores that belong to one device."""
    memory_per_device_mb: Count | None = None
    """Host memory to ask of SLURM for each device, in MB (10^6 bytes); empty asks for none."""
    scratch: Name = "/tmp"
    """Node-local folder for datasets, an absolute path; environment variables are filled in on the
    node."""
    keep_data: bool = True
    """Keep staged datasets for later cells of the same node."""
    interface: str | None = None
    """Network interface that workers talk over, for example ib0; empty lets them choose."""
    cell_timeout_s: Positive = 3600
    """A cell that runs longer ends with the result 'timeout'. Its SLURM job asks for this,
    stage_timeout_s and 5 minutes."""
    stage_timeout_s: Positive = 1800
    """Time in the same SLURM job to make the cell's dataset on its nodes; longer is a failure that
    says so. No limit for launcher local."""
    hang_timeout_s: Positive = 600
    """A cell in which no step finishes for so long is ended as hung, with a stack dump of every
    rank."""
    checkpoints: Name | None = None
    """Shared folder for the checkpoints of cells, seen by all nodes; empty puts them into each
    cell's own folder."""
    data: OwnDatasets = field(default_factory=dict)
    """Datasets of your own by name, for example {photos: {folder: ~/photos, size: 96}};
    config/README.md has the keys of each."""
    real_data: Mapping[str, str] = field(default_factory=dict)
    """Where the real datasets lie, by dataset name, in torchvision's layout."""
    setup: tuple[Name, ...] = ()
    """Shell commands before each process of a cell starts, for example "module load CUDA/12.4"."""
    container: Container | None = None
    """Image in which the processes of a cell run; it holds ddlbench and what it needs. Empty runs
    them as they are."""
    interconnect: Interconnect = field(default_factory=Interconnect)
    """How the speed of links is measured; see docs/links.md."""
    fabrics: Annotated[Mapping[str, LinkCondition], InFile(_fabrics)] = field(default_factory=dict)
    """Link conditions that ddlbench emulates, by name: the nodes of a cell with such a fabric are
    network namespaces of one real node; see docs/links.md."""
    slurm: Slurm = field(default_factory=Slurm)
    """What SLURM is asked for; only for launcher slurm."""

    @property
    def known_fabrics(self) -> set[str]:
        """Its own network, those that it emulates, and those whose links it gives by hand."""
        return {"default", *self.fabrics, *self.interconnect.links}

    def emulates(self, fabric: str) -> bool:
        """Whether the links of this fabric are emulated within one node of the site."""
        return fabric in self.fabrics

    def held_geometry(self, cell: Cell) -> tuple[int, int]:
        """Real nodes of a cell, and devices of each; see :meth:`real_geometry`."""
        return self.real_geometry(cell.nodes, cell.devices_per_node, cell.fabric)

    def real_geometry(self, nodes: int, devices_per_node: int, fabric: str) -> tuple[int, int]:
        """Real nodes for a geometry over a fabric, and devices of each.

        On a cluster, the nodes of an emulated fabric are namespaces of one real node. On a local
        site, ``nodes`` is the number of nodes that the one machine may represent.
        """
        if self.launcher == "slurm" and self.emulates(fabric):
            return 1, nodes * devices_per_node
        return nodes, devices_per_node

    @property
    def memory_per_device_bytes(self) -> float | None:
        """Host memory of one device; of a local site this machine's, shared by its devices.

        None if it is not written, or if the devices are emulated.
        """
        if self.memory_per_device_mb is not None:
            return self.memory_per_device_mb * 1e6
        if self.launcher != "local" or self.accelerator is not None:
            return None
        return _machine_memory_bytes() / (self.nodes * self.devices_per_node)

    @property
    def compute_kind(self) -> ComputeKind:
        """What computes; ``device`` is where tensors are."""
        return self.device if self.accelerator is None else "emulated"

    @property
    def scales(self) -> bool:
        """Whether more devices would compute as fast; those of one machine share its cores."""
        return self.launcher == "slurm" or self.accelerator is not None

    def grown_to(self, cell: Cell) -> Site:
        """The site with as many nodes and devices as the cell has; itself if it has them."""
        nodes, devices_per_node = self.held_geometry(cell)
        return replace(
            self,
            nodes=max(nodes, self.nodes),
            devices_per_node=max(devices_per_node, self.devices_per_node),
        )

    def why_too_small(self, cell: Cell) -> Reason | None:
        """Why the site lacks the cell's geometry; None if it has it."""
        nodes, devices_per_node = self.held_geometry(cell)
        if nodes <= self.nodes and devices_per_node <= self.devices_per_node:
            return None
        emulated = "" if nodes == cell.nodes else f" on one node, as {cell.fabric} is emulated"
        return Reason(
            "site_too_small",
            f"site {self.name} has {counted(self.nodes, 'node')} of "
            f"{counted(self.devices_per_node, 'device')}, "
            f"the cell asks for {cell.geometry}{emulated}",
        )

    def supports(self, cell: Cell) -> str | None:
        """Why the site cannot run a cell of a geometry that it has; None if it can."""
        no_link = self._why_no_link(cell)
        if no_link is not None:
            return no_link
        source = DATASETS[cell.dataset].source
        if cell.data_source == "real" and not source and cell.dataset not in self.real_data:
            return Reason(
                "no_real_data",
                f"no folder of real {cell.dataset} is named; write it into the experiment: "
                f"real_data: {{{cell.dataset}: /your/folder}}",
            )
        if self.launcher == "slurm" and cell.threads_per_device > self.cpus_per_device:
            return Reason(
                "site_too_small",
                f"site {self.name} gives a device {counted(self.cpus_per_device, 'core')}, "
                f"the cell computes with {cell.threads_per_device} threads",
            )
        if self.device == "cpu" and cell.precision == "tf32":
            return Reason("precision_unavailable", "tf32 exists on GPUs only")
        return None if self.accelerator is None else self.accelerator.supports(cell)

    def _why_no_link(self, cell: Cell) -> Reason | None:
        """Why the cell's fabric would shape nothing; None if it shapes some link, or is real."""
        condition = self.fabrics.get(cell.fabric)
        if condition is None or condition.shapes(cell.nodes, cell.devices_per_node):
            return None
        what, instead = "one node", "take two nodes or more"
        if condition.inside is not None:
            what, instead = "one device a node", "take two devices a node or more"
        return Reason(
            "no_link_to_emulate",
            f"the cell has {what}, so there is no link that {cell.fabric} could shape; "
            f"{instead}, or fabric default",
        )


def _machine_memory_bytes() -> int:
    """This machine's memory, or what its control group may use of it."""
    whole = int(psutil.virtual_memory().total)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text("ascii").strip()
    except OSError:
        return whole
    return min(whole, int(limit)) if limit.isdigit() else whole


def site_file(name: str) -> Path:
    """``config/sites/<name>.yaml``, or the path itself when ``name`` is one; it may not exist.

    Raises:
        ConfigError: it cannot be a site's name.
    """
    check_folder_name(Path(name).stem, f"site {shown(name)}: its name is a folder of results")
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    return project_file(f"config/sites/{name}.yaml")


_WRITTEN: dict[str, str] = {}  # what the user wrote for a site, by its name


def written_site(name: str) -> str:
    """How a command names a site of this name: by its path if it was last read from one."""
    return _WRITTEN.get(name, name)


def load_site(
    name: str, *, as_example: bool = False, real_data: Mapping[str, str] | None = None
) -> Site:
    """Read the site file of that name or path.

    Args:
        name: of the site, or the path of its file.
        as_example: accept a site file in which REPLACE_ME still stands.
        real_data: folders by dataset that go before those of the file.

    Raises:
        ConfigError: there is no such site, a key of it is wrong, or REPLACE_ME stands in it.
    """
    path = site_file(name)
    if not _is_file(path):
        sites = project_file("config/sites").glob("*.yaml")
        remark = nearest(name, [file.stem for file in sites])
        raise ConfigError(f"site {shown(name)} has no file {path}; {remark}")
    _WRITTEN[path.stem] = name
    return parse_site(read_yaml(path), path, as_example=as_example, real_data=real_data)


def parse_site(
    values: dict[str, Any],
    path: Path,
    *,
    as_example: bool = False,
    real_data: Mapping[str, str] | None = None,
) -> Site:
    """The site of a file's content; see :func:`load_site`."""
    unfilled = [] if as_example else _unfilled(values)
    if unfilled:
        raise ConfigError(f"{path}: replace REPLACE_ME in {', '.join(unfilled)}")
    refuse_classes(values.get("data"), str(path))
    check(values, site_schema(), where=str(path))
    where, keys = str(path), dict(values)
    keys["data"] = {
        name: OwnDataset.from_dict(entry) for name, entry in keys.get("data", {}).items()
    }
    declare(keys["data"], where, replace=False)
    for dataset in keys.get("real_data", {}):
        DATASETS.check(dataset, f"{where}: real_data")
    for dataset in real_data or {}:
        DATASETS.check(dataset, "real_data")
    keys["real_data"] = {**keys.get("real_data", {}), **(real_data or {})}
    keys |= automatic_device(keys, where)
    scratch = str(keys.get("scratch", "/"))
    if not scratch.startswith(("/", "$", "~")):
        raise ConfigError(
            f"{where}: scratch: {shown(scratch)} is no absolute path; write one of each node, "
            "for example /tmp"
        )
    if keys.get("devices_share_gpu") and keys["device"] != "cuda":
        raise ConfigError(
            f"{where}: devices_share_gpu is for device: cuda; CPU devices share their node anyway, "
            "so leave it out"
        )
    if keys.get("starter") == "torchrun" and (keys.get("slurm") or {}).get("mpi"):
        raise ConfigError(
            f"{where}: slurm.mpi needs ranks that srun starts; leave out starter: torchrun, or "
            "leave out slurm.mpi: Horovod then meets over gloo"
        )
    devices = keys.setdefault("devices_per_node", _AUTO["default"])
    keys["fabrics"] = _conditions(keys.get("fabrics", {}), f"{where}: fabrics")
    for name, kind in _PARTS.items():
        if keys.get(name) is not None:
            keys[name] = read_form(kind, keys[name])
    if keys.get("accelerator") is not None:
        keys["fabrics"] = _slowed_fabrics(keys, where)
    if devices == "auto":
        if keys["launcher"] != "local" or keys["device"] != "cpu":
            raise ConfigError(
                f"{where}: devices_per_node: auto counts this machine's cores; write the number of "
                "devices that one node has"
            )
        keys["devices_per_node"] = len(os.sched_getaffinity(0))
    return Site(name=path.stem, **{**keys, "setup": tuple(keys.get("setup", ()))})


_PARTS: Mapping[str, type[Form]] = {
    "accelerator": Accelerator,
    "container": Container,
    "interconnect": Interconnect,
    "slurm": Slurm,
}


@cache
def site_schema() -> Mapping[str, Any]:
    """The JSON schema of a site file."""
    schema = schema_of(Site, inline=True)
    del schema["properties"]["name"]  # of the file
    links = schema["properties"]["interconnect"]["properties"]["links"]
    levels = links["additionalProperties"]
    levels["minProperties"] = 1
    for name, value in levels["properties"].items():  # they are left out, not empty
        value["type"] = "number" if name == "node_bytes_per_s" else "object"
    return {**schema, "required": ["device", "launcher"]}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a path that is too long, or holds what none may hold
        return False


def _slowed_fabrics(values: dict[str, Any], where: str) -> dict[str, LinkCondition]:
    """The fabrics of a site, as slow and as narrow as its accelerator.

    Raises:
        ConfigError: the site's other keys do not fit an emulated accelerator.
    """
    if values["device"] != "cpu" or values["devices_per_node"] == "auto":
        raise ConfigError(
            f"{where}: an emulated accelerator needs device: cpu, and devices_per_node as a number"
        )
    accelerator: Accelerator = values["accelerator"]
    folder = project_file(accelerator.profiles)
    if not folder.is_dir():
        raise ConfigError(f"{where}: accelerator.profiles: {folder} is no folder")
    return {
        name: link.slowed(accelerator.slow_down).shrunk(accelerator.shrink)
        for name, link in values["fabrics"].items()
    }


def _unfilled(values: Any, key: str = "") -> list[str]:
    """Keys whose value is still REPLACE_ME, each once."""
    if isinstance(values, dict):
        parts = [(f"{key}.{name}" if key else str(name), each) for name, each in values.items()]
    elif isinstance(values, list):
        parts = [(key, each) for each in values]
    else:
        return [key] if isinstance(values, str) and "REPLACE_ME" in values else []
    return list(dict.fromkeys(missing for name, each in parts for missing in _unfilled(each, name)))


def _conditions(fabrics: dict[str, Any], where: str) -> dict[str, LinkCondition]:
    if "default" in fabrics:
        raise ConfigError(
            f"{where}: 'default' is the site's own network; give the emulated one a name of its own"
        )
    return {
        str(name): LinkCondition.from_mapping(values, f"{where}.{name}")
        for name, values in fabrics.items()
    }
