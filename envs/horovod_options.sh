#!/usr/bin/env bash
# Prints what Horovod is built with here, in one line: nothing (for CPUs only), or words such as
#
#   nccl-cuda12.6     nvcc is in PATH, and PYTHON's torch is a build for CUDA
#   mpi               HOROVOD_WITH_MPI is set
#   set-1a2b3c4d      further build variables of Horovod are set; a checksum of them
#
#   horovod_options.sh PYTHON
#
# Nothing is imported, and without nvcc no Python is started: make calls this every time.
set -euo pipefail
python=$1
words=()

torch_cuda() {
    "$python" - 2>/dev/null <<'EOP' || true
import importlib.util, pathlib, runpy
here = importlib.util.find_spec("torch")
if here is not None:
    print(runpy.run_path(str(pathlib.Path(here.origin).with_name("version.py")))["cuda"] or "")
EOP
}

if command -v nvcc >/dev/null && [ -n "$(torch_cuda)" ]; then
    operations=${HOROVOD_GPU_OPERATIONS:-NCCL}
    words+=("${operations,,}-cuda$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')")
fi
[ -z "${HOROVOD_WITH_MPI:-}" ] || words+=(mpi)
others=$(env | LC_ALL=C sort | grep -E '^HOROVOD_(BUILD|CUDA|NCCL|GPU|WITH|WITHOUT|ALLOW)' |
    grep -vE '^HOROVOD_(WITH_MPI|GPU_OPERATIONS)=' || true)
[ -z "$others" ] || words+=("set-$(printf '%s' "$others" | sha256sum | cut -c1-8)")
printf '%s\n' "${words[*]:-}"
