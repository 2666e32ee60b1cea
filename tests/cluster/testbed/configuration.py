"""SLURM's configuration files, and who may write them."""

from __future__ import annotations

import os

from .errors import TestBedError
from .hooks import EPILOG, TASK_PROLOG
from .layout import CONFIG, CONFIG_FILES, CONTROLLER, DEVICES, HOME, LOGS, MARKER
from .options import Options

MUNGE_SOCKET = HOME / "munge" / "socket"


def check_ours() -> None:
    """Refuse to touch a configuration that somebody else wrote.

    Raises:
        TestBedError: there is one.
    """
    for name in CONFIG_FILES:
        path = CONFIG / name
        if path.exists() and not path.read_text(encoding="utf-8").startswith(MARKER):
            raise TestBedError(
                f"{path} is not the test bed's: this machine belongs to a SLURM cluster; use "
                "another machine, or move that file away"
            )


def write(options: Options) -> None:
    """Write slurm.conf, gres.conf, cgroup.conf and, for accounting, slurmdbd.conf."""
    CONFIG.mkdir(parents=True, exist_ok=True)
    texts = {
        "slurm.conf": _slurm(options),
        "gres.conf": _gres(options),
        "cgroup.conf": "IgnoreSystemd=yes\n",  # for version 2 without systemd
    }
    if options.accounting:
        texts["slurmdbd.conf"] = _slurmdbd(options)
    for name, text in texts.items():
        path = CONFIG / name
        path.touch(mode=0o600 if name == "slurmdbd.conf" else 0o644)
        path.write_text(f"{MARKER}\n{text}", encoding="utf-8")


def remove() -> None:
    """Remove what carries our mark."""
    for name in CONFIG_FILES:
        path = CONFIG / name
        if path.exists() and path.read_text(encoding="utf-8").startswith(MARKER):
            path.unlink()


def _slurm(options: Options) -> str:
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    lines = [
        "ClusterName=testbed",
        f"SlurmctldHost={CONTROLLER}({options.controller_address})",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={MUNGE_SOCKET}",
        "CryptoType=crypto/munge",
        f"StateSaveLocation={HOME}/slurmctld",
        f"SlurmdSpoolDir={HOME}/nodes/%n/spool",
        f"SlurmctldPidFile={HOME}/slurmctld.pid",
        f"SlurmdPidFile={HOME}/nodes/%n/slurmd.pid",
        f"SlurmctldLogFile={LOGS}/slurmctld.log",
        f"SlurmdLogFile={LOGS}/slurmd-%n.log",
        # Limits are the task prolog's: SLURM's own need whole cgroups and real cores.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=5",
        "MpiDefault=none",
        f"Epilog={EPILOG}",
        *([f"TaskProlog={TASK_PROLOG}"] if options.limited else []),
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        f"DefMemPerCPU={memory_mib // options.cpus}",
        # A job starts as soon as it can: by default a batch job may wait three seconds.
        "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0",
        "SlurmdParameters=config_overrides",  # more CPUs than the machine has
        "ReturnToService=2",
        # Short, so that a test sees a lost node soon.
        "SlurmctldTimeout=30",
        "SlurmdTimeout=12",
        "InactiveLimit=60",
        "KillWait=3",
        "MinJobAge=600",  # finished jobs stay visible to squeue and scontrol
        "UnkillableStepTimeout=30",
        "BatchStartTimeout=10",
        "MessageTimeout=10",
        "GresTypes=gpu",
    ]
    if options.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={options.controller_address}",
            f"AccountingStoragePass={MUNGE_SOCKET}",  # here a munge socket
            "AccountingStorageTRES=gres/gpu",
        ]
    shape = (
        f"CPUs={options.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={options.cpus} "
        f"ThreadsPerCore=1 RealMemory={memory_mib} Gres=gpu:virtual:{options.devices}"
    )
    lines += [
        f"NodeName={node} NodeHostname={node} NodeAddr={options.address(node)} {shape}"
        for node in options.node_names
    ]
    lines.append(f"PartitionName=gpu Nodes={','.join(options.node_names)} Default=YES State=UP")
    lines += options.slurm_conf
    return "\n".join(lines) + "\n"


def _gres(options: Options) -> str:
    nodes = ",".join(options.node_names)
    last = options.devices - 1
    files = f"{DEVICES}/vgpu[0-{last}]" if last else f"{DEVICES}/vgpu0"
    return f"NodeName={nodes} Name=gpu Type=virtual File={files}\n"


def _slurmdbd(options: Options) -> str:
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={MUNGE_SOCKET}",
            f"DbdHost={CONTROLLER}",
            f"DbdAddr={options.controller_address}",
            "SlurmUser=root",
            f"LogFile={LOGS}/slurmdbd.log",
            f"PidFile={HOME}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )
