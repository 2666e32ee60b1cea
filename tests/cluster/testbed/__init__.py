"""A real SLURM cluster on one machine: several nodes, virtual GPUs, links of a chosen speed.

::

    host (login node)   munged; sbatch, srun, Snakemake
       | ddlbench0
    switch -------- controller   slurmctld [, slurmdbd, MariaDB], in a network namespace
       | | | |
    n1 n2 n3 n4         namespaces: network (eth0), host name, mounts (scratch, /dev/shm); slurmd

The switch is a bridge, in a namespace too.

Use it from the shell (``python tests/cluster/testbed up``) or as a context manager::

    with TestBed(Options(nodes=2, devices=2, bandwidth="1gbit")) as bed:
        print(bed.srun("--nodes=2", "hostname").stdout)
"""

from .bed import TestBed
from .errors import TestBedError
from .jobs import JobEnd, NodeProcess
from .options import Options
from .requirements import missing

__all__ = ["JobEnd", "NodeProcess", "Options", "TestBed", "TestBedError", "missing"]
