#!/usr/bin/env bash
# Faults put into real runs; writes docs/validation/faults.csv and, of other people's SLURM sites with
# the pauses of the shipped profile, docs/validation/faults_sites.csv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
DDLBENCH_FAULT_TABLE="$PWD/docs/validation/faults.csv" \
    pytest -q tests/integration/test_run_faults.py tests/cluster/test_cluster_faults.py
DDLBENCH_SHIPPED_PAUSES=1 DDLBENCH_FAULT_TABLE="$PWD/docs/validation/faults_sites.csv" \
    pytest -q tests/cluster/test_cluster_sites.py
