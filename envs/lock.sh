#!/usr/bin/env bash
# Writes requirements.lock anew: the versions of constraints.txt, with the hashes of their files.
#
#   bash envs/lock.sh [UV]        UV: the program uv; needs the package index
#
# torch, torchvision and what only torch's CUDA build brings are left out: each build of torch has
# files, and so hashes, of its own. Set-up takes their versions from constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=${1:-uv}
new=$(mktemp)
trap 'rm -f "$new"' EXIT

compile() {
    printf 'pip\nwheel\n' | "$uv" pip compile --quiet --no-config --universal --python-version 3.11 \
        --generate-hashes --no-annotate --no-header --constraint envs/constraints.txt \
        --extra measure --extra dev --extra data "$@" pyproject.toml - > "$new"
}

compile
left_out=()
for name in $(grep -oE '^(torch|torchvision|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)==' "$new" | tr -d =); do
    [ "$name" = nvidia-ml-py ] || left_out+=(--no-emit-package "$name")
done
compile "${left_out[@]}"
{
    echo "# Made by envs/lock.sh of constraints.txt: DDLBENCH_LOCKED=1 make setup installs these files only."
    cat "$new"
} > envs/requirements.lock
