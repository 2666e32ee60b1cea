"""Scripts that SLURM runs on a node: before a task starts, and after a job ended.

A share of CPU belongs to a *device*. Of a step with T tasks on a node, in a job with G devices
there, each task gets one share; G/T where there are more tasks than devices. One process that
drives several devices gets one share too: on CPU its partitions take turns (torchgpipe has one
worker thread for all of them), and with all shares it would be faster than its devices are. The
batch script, where a cell's supervisor runs, is not limited; a job of no devices neither.
"""

from __future__ import annotations

from pathlib import Path

from .cgroups import Cgroups
from .layout import HOME
from .options import Options

TASK_PROLOG = HOME / "task_prolog"
EPILOG = HOME / "epilog"

# The kernel refuses a quota below this.
_LEAST_QUOTA_US = 1_000

_TASK_PROLOG = """\
#!/bin/sh
# Puts a task in the control groups of its job, before it starts.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
version={version} cpu={cpu} memory={memory}
quota_us={quota_us} period_us={period_us} memory_bytes={memory_bytes}
[ -n "${{SLURM_STEP_TASKS_PER_NODE:-}}" ] || exit 0    # the batch script

# Tasks of this step on this node, from a list such as 2(x3),1
tasks=1 nodes=0
for part in $(echo "$SLURM_STEP_TASKS_PER_NODE" | tr , ' '); do
    tasks=${{part%%(*}}
    case $part in
        *x*) times=${{part##*x}}; nodes=$((nodes + ${{times%)}})) ;;
        *) nodes=$((nodes + 1)) ;;
    esac
    [ "$SLURM_NODEID" -ge "$nodes" ] || break
done
devices=${{SLURM_GPUS_ON_NODE:-0}}

fail() {{ echo "print the test bed could not limit this task: $1"; exit 1; }}
set_limit() {{ echo "$2" > "$1" || fail "$1"; }}

job=$SLURMD_NODENAME/job_$SLURM_JOB_ID
task=$job/$SLURM_STEP_ID.$SLURM_PROCID
mkdir -p "$cpu/$task" "$memory/$task" || fail mkdir

if [ "$memory_bytes" -gt 0 ]; then
    limit=$memory_bytes
    asked=$((${{SLURM_MEM_PER_NODE:-0}} * 1048576))
    [ "$asked" -eq 0 ] || [ "$asked" -ge "$limit" ] || limit=$asked
fi
if [ "$version" = 2 ]; then
    for group in "$SLURMD_NODENAME" "$job"; do
        set_limit "$cpu/$group/cgroup.subtree_control" "+cpu +memory"
    done
    if [ "$memory_bytes" -gt 0 ]; then
        set_limit "$memory/$job/memory.max" "$limit"
        [ ! -e "$memory/$job/memory.swap.max" ] || set_limit "$memory/$job/memory.swap.max" 0
    fi
elif [ "$memory_bytes" -gt 0 ]; then
    set_limit "$memory/$job/memory.limit_in_bytes" "$limit"
    swap=$memory/$job/memory.memsw.limit_in_bytes
    [ ! -e "$swap" ] || echo "$limit" > "$swap" 2> /dev/null || true
fi

if [ "$quota_us" -gt 0 ] && [ "$devices" -gt 0 ]; then
    shares=$devices
    # one process never computes on two devices at once
    [ "$shares" -le "$tasks" ] || shares=$tasks
    while [ $((quota_us * shares / tasks)) -lt {least_us} ]; do
        quota_us=$((quota_us * 2)) period_us=$((period_us * 2))
    done
    quota=$((quota_us * shares / tasks))
    if [ "$version" = 2 ]; then
        set_limit "$cpu/$task/cpu.max" "$quota $period_us"
    else
        set_limit "$cpu/$task/cpu.cfs_period_us" "$period_us"
        set_limit "$cpu/$task/cpu.cfs_quota_us" "$quota"
    fi
fi

set_limit "$cpu/$task/cgroup.procs" "$SLURM_TASK_PID"
[ "$version" = 2 ] || set_limit "$memory/$task/cgroup.procs" "$SLURM_TASK_PID"
"""

_EPILOG = """\
#!/bin/sh
# Ends what a job left on this node, also what hid from SLURM, and removes its control groups.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
[ -n "${{SLURM_JOB_ID:-}}" ] || exit 0
here=$(readlink /proc/self/ns/net)
for file in $(grep -lsz "^SLURM_JOB_ID=$SLURM_JOB_ID\\$" /proc/[0-9]*/environ); do
    pid=${{file#/proc/}} pid=${{pid%/environ}}
    [ "$pid" != "$$" ] && [ "$(readlink "/proc/$pid/ns/net")" = "$here" ] && kill -9 "$pid"
done
for root in {roots}; do
    job=$root/$SLURMD_NODENAME/job_$SLURM_JOB_ID
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        [ -d "$job" ] || break
        for file in $(find "$job" -name cgroup.procs); do
            while read -r pid; do kill -9 "$pid"; done < "$file"
        done
        find "$job" -depth -type d -exec rmdir {{}} +
        [ -d "$job" ] && sleep 0.1
    done
done 2> /dev/null
exit 0
"""


def write_hooks(options: Options, groups: Cgroups | None, folder: Path = HOME) -> None:
    """Write the two scripts; the first only where something is limited."""
    epilog = folder / EPILOG.name
    roots = groups.roots if groups else []
    _write(epilog, _EPILOG.format(roots=" ".join(roots) or "''"))
    if groups is None:
        return
    script = _TASK_PROLOG.format(
        version=groups.version,
        cpu=groups.cpu,
        memory=groups.memory,
        quota_us=round((options.cpu_share or 0) * options.cpu_period_us),
        period_us=options.cpu_period_us,
        memory_bytes=(options.memory_mb or 0) * 10**6,
        least_us=_LEAST_QUOTA_US,
    )
    _write(folder / TASK_PROLOG.name, script)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
