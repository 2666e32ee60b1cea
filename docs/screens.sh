#!/usr/bin/env bash
# Prints docs/screens.md: what the commands say about the demo's results, at 80 columns.
#
#   make demo 2>&1 | tee run.log        # or any later run; its lines are shown as they stand
#   snakemake --profile profiles/local --config site=accelerators -- \
#       links results/accelerators/profiles/cifar10/vgg11/fp32-1t/profile.json
#   bash docs/screens.sh run.log > docs/screens.md
set -euo pipefail
export COLUMNS=80
links=results/local/links/default/links.json
profile=results/local/profiles/cifar10/vgg11/fp32-1t/profile.json
question="--network vgg11 --dataset cifar10 --geometry 1x2 --batch-size 16"

show() { # TITLE COMMAND
    printf '## %s\n\n```\n$ %s\n' "$1" "$2"
    $2 2>&1
    printf '```\n\n'
}

cat <<'TEXT'
# Screens

What the commands print at 80 columns about the demo's results, on two shared CPU cores (`docs/screens.sh` prints
this page). A wider terminal shows more columns; `--all`, `--why`, `--json` and the CSV that is named have
the rest. Bases are measured first, so that each later cell has its speed-up at once; *left* is the mean
time of what was measured, for what is still to be.

## While it runs

```
$ snakemake --profile profiles/local
TEXT
grep -E '^(demo on local|  +(cell|profile|links)|\[| +tables)' "$1"
printf '```\n\n'
show plan "ddlbench plan"
show status "ddlbench status"
show report "ddlbench report --show"
show recommend "ddlbench recommend $question"
show "recommend: a batch that does not divide" "ddlbench recommend ${question/16/13}"
emulated="--network vgg11 --dataset cifar10 --batch-size 256 --site accelerators"
show "recommend: eight emulated accelerators" "ddlbench recommend $emulated --geometry 2x4"
show "recommend: more devices than the site has" "ddlbench recommend $emulated --geometry 16x4"
show "recommend: how many devices pay" "ddlbench recommend $emulated --geometry 1x2,1x4,2x4,4x4,8x4"
show predict "ddlbench predict $question --strategy horovod"
show accuracy "ddlbench accuracy"
show calibrate "ddlbench calibrate --choose 6"
show "oracle partition" "ddlbench oracle partition $profile --machines 2 --bandwidth 1e9 --batch-size 16"
show "oracle best" "ddlbench oracle best resnet50 --devices 64 --batch-size 2048"
show "oracle limits" "ddlbench oracle limits resnet50 --batch-size 32"
show "links show" "ddlbench links show $links"
show help "ddlbench --help"
