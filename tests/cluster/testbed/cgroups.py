"""Control groups: where tasks get their part of CPU time and memory.

::

    version 1   <cpu mount>/[own group]/ddlbench-testbed/<node>/job_<id>/<step>.<task>   cpu.cfs_*
                <memory mount>/[own group]/ddlbench-testbed/<node>/job_<id>/             memory.*
    version 2   <mount>/ddlbench-testbed/<node>/job_<id>/<step>.<task>                   both

The same tree in both: memory is limited for the job on the node, CPU for each task.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import TestBedError

_NAME = "ddlbench-testbed"


@dataclass(frozen=True)
class Cgroups:
    """Roots of the bed's groups; ``cpu`` and ``memory`` are one folder in version 2."""

    version: int
    cpu: Path
    memory: Path

    @staticmethod
    def find(
        mounts: Path = Path("/proc/mounts"), membership: Path = Path("/proc/self/cgroup")
    ) -> Cgroups:
        """Where this machine has its control groups.

        Raises:
            TestBedError: there are none that can be used.
        """
        hierarchies: dict[str, Path] = {}
        unified: Path | None = None
        for line in mounts.read_text(encoding="utf-8").splitlines():
            _, point, kind, flags = line.split()[:4]
            if kind == "cgroup2":
                unified = unified or Path(point)
            elif kind == "cgroup":
                for controller in {"cpu", "memory"} & set(flags.split(",")):
                    hierarchies[controller] = Path(point)
        if len(hierarchies) == 2:
            # Beneath the group of this process: limits that hold for it hold for the nodes too.
            groups = {}
            for line in membership.read_text(encoding="utf-8").splitlines():
                _, controllers, path = line.split(":", 2)
                groups.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
            roots = []
            for controller in ("cpu", "memory"):
                base = hierarchies[controller] / groups.get(controller, "")
                roots.append((base if base.is_dir() else hierarchies[controller]) / _NAME)
            return Cgroups(1, *roots)
        if unified is not None:
            available = (unified / "cgroup.controllers").read_text(encoding="ascii").split()
            if {"cpu", "memory"} <= set(available):
                return Cgroups(2, unified / _NAME, unified / _NAME)
        raise TestBedError(
            "this machine has no cpu and memory control groups (cgroups) that can be used; leave "
            "out --cpu-share and --memory-mb, or in a container start it with --privileged"
        )

    def create(self) -> None:
        """Make the roots.

        Raises:
            TestBedError: they cannot be written.
        """
        try:
            if self.version == 2:
                self.allow(self.cpu.parent)
            for root in {self.cpu, self.memory}:
                root.mkdir(exist_ok=True)
            if self.version == 2:
                self.allow(self.cpu)
        except OSError as error:
            raise TestBedError(
                f"control groups cannot be written here ({error}); leave out --cpu-share and "
                "--memory-mb, or in a container start it with --privileged --cgroupns=host"
            ) from None

    @staticmethod
    def allow(group: Path) -> None:
        """Version 2: let the children of ``group`` have limits."""
        (group / "cgroup.subtree_control").write_text("+cpu +memory", encoding="ascii")

    @property
    def roots(self) -> list[str]:
        """The one or two roots, for the state file."""
        return sorted({str(self.cpu), str(self.memory)})

    @staticmethod
    def remove(roots: Iterable[str]) -> None:
        """End what runs in the groups and remove them."""
        for root in map(Path, roots):
            limit = time.monotonic() + 5.0
            while root.is_dir():
                Cgroups._sweep(root)
                if time.monotonic() > limit:
                    raise TestBedError(
                        f"control group {root} cannot be removed: it is still in use"
                    )
                time.sleep(0.02)

    @staticmethod
    def _sweep(root: Path) -> None:
        for folder, _, _ in os.walk(root, topdown=False):
            with contextlib.suppress(OSError):
                for pid in Path(folder, "cgroup.procs").read_text(encoding="ascii").split():
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
