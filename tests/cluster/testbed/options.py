"""What a test bed shall be like."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import asdict, dataclass
from typing import Any

from .errors import TestBedError

_MAX_NODES = 64
_FIRST_NODE = 11  # .1 is the controller, .2 the host
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bytes_per_s(rate: str) -> float:
    """Bytes per second of a rate in tc's words, such as ``1gbit`` or ``100mbit``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if match is None or float(match[1]) <= 0:
        raise TestBedError(f"bandwidth {rate!r} is no rate; write for example 100mbit or 1gbit")
    return float(match[1]) * _UNITS[match[2]] / 8


@dataclass(frozen=True)
class Options:
    """Shape and limits of a test bed.

    Attributes:
        nodes: number of nodes, named n1, n2, ...
        devices: virtual GPUs of a node.
        cpus_per_device: cores of a node that SLURM counts for each device; may exceed the machine.
        bandwidth: rate of each node's link in either direction, for example ``1gbit``; None is
            unshaped.
        cpu_share: cores of CPU time that belong to one device; None is unlimited.
        cpu_period_us: the share is granted once in so many microseconds. A task that was idle
            computes at full speed until the grant is used up, so this must be short beside what a
            task computes at a stretch; docs/failures.md has the measurement.
        memory_mb: memory (10^6 bytes) of a job's tasks on a node; None is unlimited.
        scratch_mb: size (10^6 bytes) of a node's scratch, then a tmpfs; None is a folder on disk.
        private_tmp: give every node its own /tmp; jobs' files may then not lie in /tmp.
        accounting: run slurmdbd and MariaDB, so that sacct answers.
        slurm_conf: further lines of slurm.conf, for what other sites set.
        subnet: addresses of the nodes; must not be in use on this machine.
    """

    nodes: int = 4
    devices: int = 4
    cpus_per_device: int = 1
    bandwidth: str | None = None
    cpu_share: float | None = None
    cpu_period_us: int = 2_500
    memory_mb: int | None = None
    scratch_mb: int | None = None
    private_tmp: bool = False
    accounting: bool = False
    slurm_conf: tuple[str, ...] = ()
    subnet: str = "10.213.77.0/24"

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        object.__setattr__(self, "slurm_conf", tuple(self.slurm_conf))  # a list in the state file
        if not 1 <= self.nodes <= _MAX_NODES:
            raise TestBedError(f"nodes must be 1 to {_MAX_NODES}, not {self.nodes}")
        if not 1 <= self.devices <= 64:
            raise TestBedError(f"devices must be 1 to 64, not {self.devices}")
        if self.cpus_per_device < 1:
            raise TestBedError(f"cpus per device must be 1 or more, not {self.cpus_per_device}")
        if self.cpu_share is not None and not 0.01 <= self.cpu_share <= 64:
            raise TestBedError(f"cpu share must be 0.01 to 64 cores, not {self.cpu_share}")
        if not 1_000 <= self.cpu_period_us <= 1_000_000:
            raise TestBedError(
                f"cpu period must be 1000 to 1000000 microseconds, not {self.cpu_period_us}"
            )
        if self.memory_mb is not None and self.memory_mb < 16:
            raise TestBedError(f"memory must be 16 MB or more, not {self.memory_mb}")
        if self.scratch_mb is not None and self.scratch_mb < 1:
            raise TestBedError(f"scratch must be 1 MB or more, not {self.scratch_mb}")
        if self.bandwidth is not None:
            bytes_per_s(self.bandwidth)
        try:
            network = ipaddress.IPv4Network(self.subnet)
        except ValueError as error:
            raise TestBedError(
                f"subnet {self.subnet!r} is wrong ({error}); write for example 10.213.77.0/24"
            ) from None
        if not network.is_private or network.num_addresses < _FIRST_NODE + self.nodes + 1:
            raise TestBedError(f"subnet {self.subnet} must be private and hold {self.nodes} nodes")

    @property
    def node_names(self) -> list[str]:
        """n1, n2, ..."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def cpus(self) -> int:
        """CPUs that SLURM counts on a node."""
        return self.devices * self.cpus_per_device

    @property
    def limited(self) -> bool:
        """Whether tasks run in cgroups."""
        return self.cpu_share is not None or self.memory_mb is not None

    @property
    def controller_address(self) -> str:
        """Where slurmctld and slurmdbd listen."""
        return str(ipaddress.IPv4Network(self.subnet)[1])

    @property
    def host_address(self) -> str:
        """This machine's own address towards the nodes: it is the login node."""
        return str(ipaddress.IPv4Network(self.subnet)[2])

    @property
    def prefix_length(self) -> int:
        """Of the subnet."""
        return ipaddress.IPv4Network(self.subnet).prefixlen

    def address(self, node: str) -> str:
        """The node's address on eth0."""
        index = self.node_names.index(node)
        return str(ipaddress.IPv4Network(self.subnet)[_FIRST_NODE + index])

    def as_dict(self) -> dict[str, Any]:
        """For the state file."""
        return asdict(self)
