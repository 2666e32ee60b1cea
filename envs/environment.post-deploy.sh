#!/usr/bin/env bash
# After `conda env create`: what conda cannot install (torchgpipe, this package, its plug-ins, Horovod).
# Run it inside the environment, from the project's folder; Snakemake, which runs a copy of it,
# starts it there too.
set -euo pipefail
if [ ! -f envs/build_horovod.sh ]; then
    echo "run this from the folder that holds the Snakefile" >&2
    exit 1
fi
python -m pip install --no-build-isolation --no-deps torchgpipe==0.0.7
python -m pip install --no-build-isolation --no-deps --editable .
for plugin in plugins/*/; do
    python -m pip install --no-build-isolation --no-deps --editable "./$plugin"
done
bash envs/build_horovod.sh "$(command -v python)" "${DDLBENCH_CACHE:-$HOME/.cache/ddlbench}" ||
    echo "Horovod is left out: $(cat "$(python -c 'import sys; print(sys.prefix)')/horovod-missing.txt")" >&2
