#!/usr/bin/env bash
# Faults put into real runs; writes docs/validation/faults.csv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
DDLBENCH_FAULT_TABLE="$PWD/docs/validation/faults.csv" \
    pytest -q tests/integration/test_run_faults.py tests/cluster/test_cluster_faults.py \
    tests/cluster/test_cluster_sites.py
