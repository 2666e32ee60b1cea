"""Many jobs of one shape in one sbatch: SLURM's job array.

::

    jobs that are ready now -> by shape: rule, threads, resources -> chunks -> one sbatch each

    #!/bin/sh
    case "$SLURM_ARRAY_TASK_ID" in
    1) ... snakemake ... cell A ;;       every task runs the command that its job would run alone
    2) ... snakemake ... cell B ;;
    esac

The array mode of the plugin (2.8) is not used. It gives all tasks the resources of the first job.
Jobs of several ranks all run the first job's command. It puts all commands into one argument, which
Linux limits to 128 KiB: some hundred cells. It keeps jobs back until an array is full, so a run can
wait for ever. It looks for the logs of tasks where they are not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from ddlbench.common.statistics import grouped

TOO_LONG = "the batch script of the array is too long"
_MOST_SCRIPT_BYTES = 2_000_000  # slurmctld takes 4 MB unless a site says otherwise
# Resources that are no option of sbatch.
_NO_SHAPE = {"attempt", "tmpdir", "_nodes"}


class ArrayRefused(Exception):  # noqa: N818 - what sbatch did
    """Sbatch did not take an array; its words."""


def shape_of(job: JobExecutorInterface) -> tuple[object, ...] | None:
    """What jobs of one array have in common; None for a group of rules, which goes alone."""
    if job.is_group():
        return None
    resources = {name: str(job.resources.get(name)) for name in job.resources.keys()}  # noqa: SIM118
    shape = sorted((name, value) for name, value in resources.items() if name not in _NO_SHAPE)
    return (job.rule.name, job.threads, *shape)


def arrays_of(
    jobs: Sequence[JobExecutorInterface], most: int
) -> Iterator[list[JobExecutorInterface]]:
    """Jobs by their shape, in chunks of at most ``most``; none is kept back.

    SLURM starts jobs in the order in which they come: bases first, as Snakemake would.
    """
    ordered = sorted(jobs, key=lambda job: -getattr(job, "priority", 0))
    for alike in grouped((shape_of(job) or id(job), job) for job in ordered).values():
        for begin in range(0, len(alike), most):
            yield alike[begin : begin + most]


def script_of(commands: Sequence[str]) -> str:
    """The batch script of an array; task i, counted from 1, runs command i."""
    cases = "".join(f"{number}) {command} ;;\n" for number, command in enumerate(commands, 1))
    return f'#!/bin/sh\ncase "$SLURM_ARRAY_TASK_ID" in\n{cases}esac\n'


def submit(executor: Any, jobs: Sequence[JobExecutorInterface]) -> list[tuple[str, Path]]:
    """Submit jobs of one shape by one sbatch.

    Returns:
        the number of each task, as ``12_1``, and the file of its output.

    Raises:
        ArrayRefused: sbatch does not take them.
        WorkflowError: an option is not allowed.
    """
    script = script_of([executor.format_job_exec(job) for job in jobs])
    if len(script.encode()) > _MOST_SCRIPT_BYTES:
        raise ArrayRefused(TOO_LONG)
    first = jobs[0]
    plugin.validate_slurm_extra(first)
    folder = executor.slurm_logdir / f"rule_{first.name}"
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "run_uuid": executor.run_uuid,
        "slurm_logfile": folder / "%A_%a.log",
        "comment_str": f"rule_{first.name}",
        "account": next(executor.get_account_arg(first)),
        "partition": executor.get_partition_arg(first),
        "workdir": executor.workflow.workdir_init,
    }
    call = plugin.get_submit_command(first, options, settings=executor.workflow.executor_settings)
    call += f"{plugin.set_gres_string(first)} --array=1-{len(jobs)} /dev/stdin"
    done = subprocess.run(
        call,
        shell=True,
        input=script,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise ArrayRefused(done.stderr)
    answer = done.stdout.strip().split(";")[0]
    array = plugin.validate_or_get_slurm_job_id(answer, done.stdout)
    return [(f"{array}_{at}", folder / f"{array}_{at}.log") for at in range(1, len(jobs) + 1)]
