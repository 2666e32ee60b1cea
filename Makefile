# make demo   sets everything up and runs the main job on this machine, figures at the end
# make report   makes tables, figures and the HTML report of what is measured so far
# make check   formatting, types and quick unit tests (minutes): before every commit
# make test   check, slow unit tests, equivalence, whole cells, the workflow: all but SLURM, GPUs
# make test-toolchains   what other people's tools read and write, with the real tools
# make test-cluster   the workflow on a real SLURM of virtual nodes (root and SLURM's packages)
# make test-exhaustive   full-size networks and further cases of the same tests, minutes each
# make tables   writes every table anew that is made from the code (planning/*.csv, documents)
# make docs   builds the documents as a web site, site/index.html; a broken link ends it
# make p2p   clones and builds NVIDIA's link test for your GPUs: git, nvcc and internet
# make validate   the long measured studies on that SLURM; writes docs/validation/ (hours)
# make validate-gpu   what one GPU can prove, five parts of nine minutes; see docs/validation/gpu/
# Where things lie: DDLBENCH_ENV (environment, default .venv), DDLBENCH_CACHE (Horovod wheel).
# Tests run in TEST_PROCESSES processes (2); each of them starts further ones of its own. The tests
# of the workflow have the longest files, so they come first: no process is left with one at the end.

SHELL := /bin/bash
DDLBENCH_ENV ?= .venv
DOCS_ENV ?= .cache/docs
TEST_PROCESSES ?= 2
UNIT := tests/unit $(wildcard plugins/*/tests/unit)
INTEGRATION := tests/workflow tests/integration $(wildcard plugins/*/tests/integration)
LONGEST_FIRST = -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
# Unit tests that take over three seconds lie in these files.
SLOW_UNIT := $(shell grep -rl 'mark\.slow' $(UNIT))
# Not the modules that you keep beside them.
OURS := src plugins tests workflow validation benchmarks envs/reframe
GPU_PYTHON ?= python3
GPU_RESULTS ?= gpu-results
GPU_OPTIONS ?=
export DDLBENCH_ENV
export PATH := $(abspath $(DDLBENCH_ENV))/bin:$(PATH)

.PHONY: help setup demo report check test test-exhaustive lint unit slow-unit equivalence \
	integration test-toolchains test-cluster tables docs p2p validate validate-gpu bench clean

help:
	@sed -n '1,13s/^# //p' Makefile

setup:
	@bash envs/setup.sh

demo: setup
	snakemake --profile profiles/local
	snakemake --profile profiles/local --configfile config/experiments/demo-gpus.yaml
	@ddlbench report --show
	@ddlbench report --configfile config/experiments/demo-gpus.yaml --show

report: setup
	@ddlbench report

check: setup lint unit

# What check, slow-unit, integration and equivalence test, in two runs: they collect tests, and wait
# for their last one, less often than four.
test: lint
	pytest $(UNIT) -m "not exhaustive" -n $(TEST_PROCESSES) --dist worksteal
	pytest $(INTEGRATION) tests/equivalence -m "not exhaustive" $(LONGEST_FIRST)

lint: setup
	ruff check $(OURS)
	ruff format --check $(OURS)
	mypy
	snakefmt --check Snakefile workflow/Snakefile rules
	snakemake --lint

unit: setup
	pytest $(UNIT) -m "not exhaustive and not slow" -n $(TEST_PROCESSES) --dist worksteal

slow-unit: setup
	pytest $(SLOW_UNIT) -m "slow and not exhaustive" -n $(TEST_PROCESSES) --dist loadfile

# Ranks train what one device trains.
equivalence: setup
	pytest tests/equivalence -m "not exhaustive" -n $(TEST_PROCESSES) --dist loadfile

integration: setup
	pytest $(INTEGRATION) -m "not exhaustive" $(LONGEST_FIRST)

test-exhaustive: setup
	DDLBENCH_EXAMPLES=many pytest tests/unit tests/equivalence tests/integration tests/workflow plugins -m "exhaustive or hypothesis"
	pytest tests/cluster -m exhaustive

test-toolchains: setup
	pytest tests/toolchains

test-cluster: setup
	pytest tests/cluster -m "not exhaustive"

tables: setup
	python -m ddlbench.commands.tables

$(DOCS_ENV)/bin/mkdocs: envs/docs.txt
	python3 -m venv $(DOCS_ENV)
	$(DOCS_ENV)/bin/pip install --quiet --requirement envs/docs.txt
	touch $@

# A broken link or anchor ends it.
docs: $(DOCS_ENV)/bin/mkdocs
	NO_MKDOCS_2_WARNING=1 $(DOCS_ENV)/bin/mkdocs build --strict
	@echo "site/index.html; with search: python3 -m http.server --directory site"

p2p: setup
	@python -m ddlbench.interconnect.nvidia_programs

validate: setup
	bash validation/faults.sh
	python validation/link.py
	python validation/checkpoint.py
	python validation/speedup.py
	python validation/cpu_share.py
	python validation/prediction.py
	python validation/pipelines.py
	python validation/networking.py
	python validation/splits.py
	python validation/emulated.py
	python validation/transformer_cells.py
	python validation/learning.py
	python validation/large_images.py
	python validation/tuning.py
	python validation/ablation.py
	python validation/choice_cases.py
	python validation/choices.py
	python validation/papers.py
	python validation/claims.py

# Of its own Python, so that a machine without internet needs no set-up.
validate-gpu:
	$(GPU_PYTHON) validation/gpu.py --part 1 --part 2 --part 3 --part 4 --part 5 --out $(GPU_RESULTS) $(GPU_OPTIONS)

bench: setup
	python benchmarks/overhead/run.py
	python benchmarks/datasets/run.py
	python benchmarks/dryrun/run.py
	python benchmarks/questions/run.py
	python benchmarks/recorded/run.py

clean:
	rm -rf .snakemake site
	[ ! -d results ] || find -H results -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
