"""The beginning of every srun inside a job: ranks, staging, and the doctor's look at the nodes."""

from __future__ import annotations

from ddlbench.experiment.site import Site

__all__ = ["srun_command"]


def srun_command(site: Site, *, nodes: int, tasks: int, per_node: int, devices: int) -> list[str]:
    """Words of an srun up to the program.

    Geometry and cores are always given: inside a job srun takes neither from the allocation
    (``--cpus-per-task`` not since SLURM 22.05). What the site adds comes last, so that it wins.

    Args:
        site: gives cores of a device, ``slurm.mpi`` and ``slurm.srun``.
        nodes: of the step.
        tasks: of all nodes.
        per_node: tasks of one node.
        devices: of one task; it gets the cores of all of them, so that data-loading processes have
            theirs too.
    """
    mpi = site.slurm.get("mpi")
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={per_node}",
        f"--cpus-per-task={site.cpus_per_device * devices}",
        *([f"--mpi={mpi}"] if mpi else []),
        *site.slurm.get("srun", []),
    ]
