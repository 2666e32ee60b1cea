#!/usr/bin/env bash
# Makes the one environment that ddlbench needs; a second call returns at once.
#
#   DDLBENCH_ENV    where the environment lies      (default: .venv beside the Snakefile)
#   DDLBENCH_CACHE  where the Horovod wheel is kept (default: ~/.cache/ddlbench)
#   PYTHON          interpreter, 3.11 or newer      (default: the first suitable one found)
#   DDLBENCH_TORCH  cpu or cuda: build of torch     (default: cpu where nothing hints at a GPU)
#   DDLBENCH_LOCKED 1: only files whose hashes are in requirements.lock, but torch's and Horovod's
#
# What Horovod is built with counts too (horovod_options.sh): a call that offers more than the last
# one had, for example nvcc after `module load CUDA`, builds it again; one that offers less does not.
#
# Everything is fetched here, on a machine with internet; compute nodes need none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
env=${DDLBENCH_ENV:-.venv}
cache=${DDLBENCH_CACHE:-$HOME/.cache/ddlbench}
stamp=$env/.ddlbench-ready
# The folder itself counts too: a clone elsewhere must not use this one's package.
wanted=$( (pwd; cat pyproject.toml plugins/*/pyproject.toml envs/constraints.txt envs/requirements.lock envs/setup.sh envs/*horovod*.sh) | sha256sum | cut -d' ' -f1)

is_ready() {
    local sum="" had="" option
    [ -f "$stamp" ] && read -r sum had < "$stamp"
    [ "$sum" = "$wanted" ] || return 1
    for option in $(bash envs/horovod_options.sh "$env/bin/python"); do
        case " $had " in *" $option "*) ;; *) return 1 ;; esac
    done
}
if is_ready; then exit 0; fi

say() { printf '\033[1mddlbench set-up:\033[0m %s\n' "$*"; }

suitable() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2])' 2>/dev/null; }
python=${PYTHON:-}
if [ -z "$python" ]; then
    for candidate in python3 python3.11 python3.12 python3.13; do
        if command -v "$candidate" >/dev/null && suitable "$candidate"; then python=$candidate; break; fi
    done
fi
if [ -z "$python" ] || ! suitable "$python"; then
    say "needs Python 3.11 or newer with its venv module; install it, or name it: PYTHON=/path/to/python3 make demo" >&2
    exit 1
fi

# A login node has no driver, but it has SLURM or nvcc: its torch is the one for GPUs.
hints_at_gpu() {
    [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi || command -v nvcc || command -v sbatch
} >/dev/null
build=${DDLBENCH_TORCH:-$(if hints_at_gpu; then echo cuda; else echo cpu; fi)}
# Behind a mirror PyPI's own index must do; pip would try this one again for every package.
cpu_index=https://download.pytorch.org/whl/cpu
reachable() {
    "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$1"
} >/dev/null 2>&1
torch_index=()
case $build in
cpu)
    size="torch (about 180 MB)"
    if reachable "$cpu_index/"; then torch_index=(--extra-index-url "$cpu_index"); fi
    ;;
cuda) size="torch with CUDA (several GB)" ;;
*) say "DDLBENCH_TORCH is $build; write cpu or cuda" >&2 && exit 1 ;;
esac

[ -x "$env/bin/python" ] || "$python" -m venv "$env"
log=$env/setup.log
: > "$log"
pip() {
    if "$env/bin/python" -m pip --disable-pip-version-check "$@" >> "$log" 2>&1; then return; fi
    tail -n 20 "$log" >&2
    say "pip install failed; all it wrote is in $log" >&2
    exit 1
}
say "downloads $size and the libraries, compiles Horovod once; three minutes or more (log: $log)"

say "1/5 environment in $env ($("$python" --version))"
pip install --constraint envs/constraints.txt --upgrade pip setuptools wheel
# Before torch, so that what torch needs is of these files, too.
if [ "${DDLBENCH_LOCKED:-}" = 1 ]; then
    pip install --require-hashes --no-deps --no-build-isolation --requirement envs/requirements.lock
fi

say "2/5 torch, the $build build: the largest download (DDLBENCH_TORCH=cpu or cuda chooses)"
# And what Horovod is built with.
pip install "${torch_index[@]}" --constraint envs/constraints.txt torch torchvision \
    cloudpickle psutil pyyaml packaging cffi
set -m # a process group of its own, which ends with this script
bash envs/build_horovod.sh "$env/bin/python" "$cache" build < /dev/null > "$env/horovod-setup.log" 2>&1 &
building=$!
set +m
trap 'kill -- "-$building" 2>/dev/null || true' EXIT

say "3/5 torchgpipe, Snakemake, the libraries and the plug-ins; Horovod is compiled meanwhile"
# torchgpipe's last release predates build isolation: it needs the setuptools that is here.
pip install --constraint envs/constraints.txt --no-build-isolation --no-deps torchgpipe
pip install --constraint envs/constraints.txt --no-build-isolation --editable '.[measure,dev]'
for plugin in plugins/*/; do
    pip install --no-build-isolation --no-deps --editable "./$plugin"
done
# One way to read own data; all else works without it.
if ! (pip install --constraint envs/constraints.txt --no-build-isolation --editable '.[data]'); then
    say "Hugging Face datasets, Parquet files and WebDataset shards cannot be read; all else can. Later: pip install 'ddlbench[data]'" >&2
fi

say "4/5 Horovod (compiled once, about two minutes on two cores; the wheel is kept in $cache)"
if ! { wait "$building" && bash envs/build_horovod.sh "$env/bin/python" "$cache"; } >> "$log" 2>&1; then
    say "Horovod is left out: $(cat "$env/horovod-missing.txt"); its cells will be 'unsupported', all others run" >&2
elif [ -f "$env/horovod-no-gpu.txt" ]; then
    say "Horovod is built for CPUs only: $(cat "$env/horovod-no-gpu.txt"). Once it can compile (envs/README.md, GPUs): rm $stamp && make setup" >&2
elif ! command -v nvcc >/dev/null && ! "$env/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; then
    say "torch is a build for CUDA, but there is no nvcc: Horovod is built without NCCL, for CPUs only. To run it on GPUs load the CUDA module (module load CUDA) and run make setup again" >&2
fi

say "5/5 checking that everything imports"
"$env/bin/python" -W ignore - <<'EOF'
import importlib
from ddlbench.networks import torchvision_compat  # noqa: F401
for name in ("torch", "torchgpipe", "snakemake", "matplotlib", "pandas"):
    importlib.import_module(name)
EOF
printf '%s\n' "$wanted $(bash envs/horovod_options.sh "$env/bin/python")" > "$stamp"
say "done"
