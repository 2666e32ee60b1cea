"""The command: up, status, site, run, down, install."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from .bed import TestBed
from .errors import TestBedError
from .options import Options
from .requirements import install
from .state import State


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.action(options)
    except TestBedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("testbed: stopped; nothing was left behind", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="testbed", description="A SLURM cluster on this machine; docs/failures.md tells more."
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    command = actions.add_parser("install", help="install the Debian packages it needs (root)")
    command.add_argument("--accounting", action="store_true", help="also slurmdbd and MariaDB")
    command.set_defaults(action=_install)

    default = Options()
    command = actions.add_parser("up", help="raise the cluster (root)")
    command.add_argument("--nodes", type=int, default=default.nodes)
    command.add_argument("--devices", type=int, default=default.devices, help="virtual GPUs a node")
    command.add_argument("--cpus-per-device", type=int, default=default.cpus_per_device)
    command.add_argument("--bandwidth", metavar="RATE", help="of each node's link, such as 1gbit")
    command.add_argument("--cpu-share", type=float, metavar="CORES", help="CPU time of a device")
    command.add_argument("--memory-mb", type=int, metavar="MB", help="of a job's tasks on a node")
    command.add_argument("--scratch-mb", type=int, metavar="MB", help="size of a node's /scratch")
    command.add_argument("--private-tmp", action="store_true", help="give each node its own /tmp")
    command.add_argument("--accounting", action="store_true", help="make sacct answer")
    command.add_argument("--subnet", default=default.subnet, help="addresses (%(default)s)")
    command.set_defaults(action=_up)

    command = actions.add_parser("status", help="what is up")
    command.set_defaults(action=_status)

    command = actions.add_parser("site", help="print the site file for ddlbench")
    command.set_defaults(action=_site)

    command = actions.add_parser(
        "run", help="run a command on a node, for example: run n1 ip address"
    )
    command.add_argument("node")
    command.add_argument("command", nargs=argparse.REMAINDER)
    command.set_defaults(action=_run)

    command = actions.add_parser("down", help="end the cluster and remove all of it (root)")
    command.set_defaults(action=_down)
    return parser


def _install(options: argparse.Namespace) -> int:
    install(options.accounting)
    return 0


def _up(options: argparse.Namespace) -> int:
    values = {name: value for name, value in vars(options).items() if name != "action"}
    bed = TestBed(Options(**values))
    print(_summary(bed) if bed.up() else "the test bed is up already")
    return 0


def _summary(bed: TestBed) -> str:
    options = bed.options
    limits = [
        f"links {options.bandwidth or 'unshaped'}",
        f"CPU {options.cpu_share or 'unlimited'}" + (" cores a device" * bool(options.cpu_share)),
        f"memory {options.memory_mb or 'unlimited'}" + (" MB a job" * bool(options.memory_mb)),
    ]
    return (
        f"{options.nodes} nodes x {options.devices} virtual GPUs, partition gpu "
        f"({', '.join(limits)}); try `srun --nodes={options.nodes} hostname`"
    )


def _status(_: argparse.Namespace) -> int:
    state = State.load()
    if state is None:
        print("no test bed is up")
        return 3
    bed = TestBed.current()
    print(_summary(bed))
    states = bed.node_states()
    for node in bed.nodes:
        print(f"  {node}  {bed.address(node):15}  {states.get(node, 'no answer')}")
    if state.owner is not None:
        gone = " (gone: the next `up` or `down` removes this bed)" if state.orphaned else ""
        print(f"held by process {state.owner.pid}{gone}")
    if bed.broken():
        print(f"ended: {', '.join(bed.broken())}; `testbed up` makes it anew")
    elif not state.complete:
        print("it never came up whole; `testbed up` makes it anew")
    return 0 if bed.healthy and not state.orphaned else 1


def _site(_: argparse.Namespace) -> int:
    print(TestBed.current().site_text(), end="")
    return 0


def _run(options: argparse.Namespace) -> int:
    command = options.command or [os.environ.get("SHELL", "/bin/sh")]
    return subprocess.run(
        TestBed.current().command_on(options.node, *command), check=False
    ).returncode


def _down(_: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise TestBedError("ending a test bed needs root; run it with sudo")
    TestBed().down()
    print("the test bed is down")
    return 0
