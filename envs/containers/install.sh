#!/usr/bin/env bash
# The steps that ddlbench.def and Dockerfile share; run inside the image, as root.
#
#   install.sh TORCH      cpu or cuda: build of torch; cuda needs a base image with nvcc and NCCL
#
# The project lies in /opt/ddlbench and stays there: its package is installed where it lies.
set -euo pipefail
torch=${1:?write cpu or cuda}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export DEBIAN_FRONTEND=noninteractive
apt-get update
# A compiler for Horovod and for torch.compile; ip and tc for emulated links.
apt-get install --yes --no-install-recommends \
    ca-certificates cmake g++ git iproute2 make procps python3 python3-dev python3-venv
rm -rf /var/lib/apt/lists/*

DDLBENCH_ENV=/opt/ddlbench/.venv DDLBENCH_CACHE=${DDLBENCH_CACHE:-/tmp/ddlbench-cache} \
    DDLBENCH_TORCH=$torch PIP_NO_CACHE_DIR=1 bash envs/setup.sh
rm -rf /tmp/ddlbench-cache

# What nobody can repair in a finished image must end the build.
missing=/opt/ddlbench/.venv/horovod-missing.txt
if [ -f "$missing" ]; then
    echo "Horovod was not built: $(cat "$missing")" >&2
    exit 1
fi
