"""Starting munged, slurmctld, the nodes' slurmd and, for accounting, MariaDB and slurmdbd."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from .configuration import MUNGE_SOCKET
from .errors import TestBedError
from .layout import CONTROLLER, DEVICES, HOME, LOGS, SCRATCH, namespace, node_home
from .options import Options
from .processes import Identity, alive, end, spawn, tail, wait_until
from .shell import system

_NULL_DEVICE = os.makedev(1, 3)


def make_devices(options: Options) -> None:
    """Character devices that stand for GPUs: SLURM counts files."""
    DEVICES.mkdir(parents=True, exist_ok=True)
    for number in range(options.devices):
        os.mknod(DEVICES / f"vgpu{number}", 0o666 | stat.S_IFCHR, _NULL_DEVICE)


def start_munge() -> Identity:
    """A munged of the bed's own, with its own key and socket."""
    folder = MUNGE_SOCKET.parent
    folder.mkdir(parents=True)
    folder.chmod(0o711)
    key = folder / "key"
    system("mungekey", "--create", f"--keyfile={key}")
    for path in (folder, key):
        shutil.chown(path, "munge", "munge")
    # The log is beside the socket: munged wants folders that nobody else may write.
    process = spawn(
        [
            *("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"),
            *("munged", "--foreground", f"--socket={MUNGE_SOCKET}", f"--key-file={key}"),
            *(f"--pid-file={folder}/pid", f"--seed-file={folder}/seed"),
            *(f"--log-file={folder}/log", "--num-threads=2"),
        ],
        LOGS / "munged.log",
    )
    wait_until(
        lambda: MUNGE_SOCKET.exists() or not alive(process),
        10,
        lambda: f"munged does not start: {tail(LOGS / 'munged.log')}",
    )
    if not alive(process):
        raise TestBedError(f"munged ended: {tail(LOGS / 'munged.log')}")
    return process


def start_controller_holder() -> Identity:
    """A process that holds the controller's namespaces: its network and its host name."""
    ready = HOME / CONTROLLER
    return _hold(CONTROLLER, ready, [f"hostname {CONTROLLER}"])


def start_slurmctld(holder: Identity) -> Identity:
    """The controller's daemon."""
    (HOME / "slurmctld").mkdir(parents=True, exist_ok=True)
    return spawn([*inside(holder), "slurmctld", "-D"], LOGS / "slurmctld.out")


def start_holder(node: str, options: Options) -> Identity:
    """A process that holds the node's namespaces and has set up its mounts.

    slurmd is started into them and may be killed and started again.
    """
    home = node_home(node)
    (home / "spool").mkdir(parents=True)
    (home / "scratch").mkdir()
    (home / "tmp").mkdir()
    (home / "tmp").chmod(0o1777)
    if options.scratch_mb is None:
        scratch = f"mount --bind {home}/scratch {SCRATCH}"
    else:
        scratch = f"mount -t tmpfs -o size={options.scratch_mb * 10**6} scratch {SCRATCH}"
    steps = [
        f"hostname {node}",
        scratch,
        "mount -t tmpfs -o mode=1777 shm /dev/shm",
        *([f"mount --bind {home}/tmp /tmp"] if options.private_tmp else []),
    ]
    return _hold(node, home / "ready", steps)


def _hold(name: str, ready: Path, steps: list[str]) -> Identity:
    """Run ``steps`` in new namespaces (of host name and mounts) and stay."""
    log = LOGS / f"holder-{name}.log"
    process = spawn(
        [
            *("nsenter", f"--net=/run/netns/{namespace(name)}"),
            *("unshare", "--uts", "--mount", "--propagation", "slave"),
            *("sh", "-c", "\n".join(["set -e", *steps, f"touch {ready}", "exec sleep infinity"])),
        ],
        log,
    )
    wait_until(
        lambda: ready.exists() or not alive(process),
        10,
        lambda: f"{name} does not come up: {tail(log)}",
    )
    if not alive(process):
        raise TestBedError(f"{name} cannot be set up: {tail(log)}")
    return process


def inside(holder: Identity) -> list[str]:
    """Beginning of a command that shall run on the holder's node."""
    return ["nsenter", f"--target={holder.pid}", "--net", "--uts", "--mount"]


def start_slurmd(node: str, holder: Identity) -> Identity:
    """The node's daemon, in the namespaces of ``holder``."""
    return spawn([*inside(holder), "slurmd", "-D", "-N", node], LOGS / f"slurmd-{node}.out")


def start_accounting(holder: Identity) -> dict[str, Identity]:
    """A MariaDB that listens on a socket of its own only, and slurmdbd, both on the controller."""
    folder = HOME / "mariadb"
    folder.mkdir(parents=True)
    socket = folder / "socket"
    common = ["--no-defaults", f"--datadir={folder}/data"]
    system(
        *("mariadb-install-db", *common, "--user=root", "--auth-root-authentication-method=normal"),
        "--skip-test-db",
    )
    log = LOGS / "mariadb.log"
    database = spawn(
        [
            *(
                *inside(holder),
                "mariadbd",
                *common,
                "--user=root",
                "--skip-networking",
                f"--socket={socket}",
            ),
            *(f"--pid-file={folder}/pid", "--innodb-buffer-pool-size=64M"),
            *("--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=2"),
        ],
        log,
    )
    wait_until(
        lambda: socket.exists() or not alive(database),
        30,
        lambda: f"MariaDB does not start: {tail(log)}",
    )
    try:
        daemon = spawn(
            [*inside(holder), "slurmdbd", "-D"],
            LOGS / "slurmdbd.out",
            MYSQL_UNIX_PORT=str(socket),
        )
        _register_cluster(daemon)
    except BaseException:
        end([database])
        raise
    return {"mariadbd": database, "slurmdbd": daemon}


def _register_cluster(daemon: Identity) -> None:
    """Wait for slurmdbd and give it the cluster."""

    def registered() -> bool:
        done = subprocess.run(
            ["sacctmgr", "--immediate", "add", "cluster", "testbed"],
            check=False,
            capture_output=True,
            timeout=60,
        )
        return done.returncode == 0 or not alive(daemon)

    log = LOGS / "slurmdbd.log"
    wait_until(registered, 60, lambda: f"slurmdbd does not answer: {tail(log)}")
    if not alive(daemon):
        raise TestBedError(f"slurmdbd ended: {tail(log)}")
