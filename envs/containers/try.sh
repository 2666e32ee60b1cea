#!/usr/bin/env bash
# Builds an image of this folder and trains in it; the first thing that fails ends it.
#
#   try.sh apptainer    of ddlbench.def: ddlbench.sif
#   try.sh buildah      of the Dockerfile: localhost/ddlbench; ddlbench.sif where Apptainer is, too
#
#   base          Debian 12 of the registry; where none can be reached, of debootstrap (root)
#   inside        the smoke experiment; the workflow runs in the image
#   from outside  trial.yaml; the workflow runs here (make setup), the ranks run in the image, by
#                 `container` of a site file; needs Apptainer
#
# DDLBENCH_ENV           environment of the workflow outside (default .venv)
# DDLBENCH_IMAGE_WORK    where everything lies, 6 GB (default .cache/image)
# DDLBENCH_IMAGE_BINDS   SOURCE:TARGET ...: what the build sees of this machine, for example the
#                        pip.conf of a mirror. A registry's base must have the TARGETs for Apptainer
# DDLBENCH_DEBIAN        mirror that debootstrap takes (default http://deb.debian.org/debian)
set -euo pipefail
tool=${1:-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=${DDLBENCH_IMAGE_WORK:-$root/.cache/image}
environment=$(cd "$root" && realpath "${DDLBENCH_ENV:-.venv}")
registry=docker.io/library/debian:bookworm-slim
base=localhost/ddlbench-base
sif=$work/ddlbench.sif
quickly=(--mksquashfs-args "-Xcompression-level 1") # a larger file, in a fraction of the time
read -ra binds <<< "${DDLBENCH_IMAGE_BINDS:-}"
cd "$root"

say() { printf '\033[1mimage:\033[0m %s\n' "$*"; }

fail() {
    say "$*" >&2
    exit 1
}

step() { # NAME COMMAND ...: say how long it took; on failure what it wrote last
    local name=$1 log=$work/$1.log began=$SECONDS status=0
    shift
    "$@" > "$log" 2>&1 < /dev/null & # in a condition, bash would go on after an error in a function
    wait $! || status=$?
    if [ "$status" != 0 ]; then
        tail -n 30 "$log" >&2
        fail "$name failed after $((SECONDS - began)) s; all it wrote is in $log"
    fi
    say "$name: $((SECONDS - began)) s"
}

have() { command -v "$1" > /dev/null; }

bootstrap() { # Debian 12 in the folder debian, with the places of all binds
    have debootstrap || fail "the registry cannot be reached: install debootstrap"
    echo "Debian 12 of debootstrap" > "$work/base.txt"
    rm -rf "$work/debian"
    debootstrap --variant=minbase --include=ca-certificates bookworm "$work/debian" \
        "${DDLBENCH_DEBIAN:-http://deb.debian.org/debian}"
    local bind
    for bind in "${binds[@]}"; do
        if [ -d "${bind%%:*}" ]; then
            mkdir -p "$work/debian/${bind#*:}"
        else
            mkdir -p "$(dirname "$work/debian/${bind#*:}")"
            touch "$work/debian/${bind#*:}"
        fi
    done
}

# --- Apptainer: a root without all capabilities, as in a container, can neither build nor mount

exec_options=()
as_builder=()

prepare_apptainer() { # IMAGE
    apptainer exec "$1" true > "$work/start.log" 2>&1 && return
    apptainer exec --userns "$1" true > "$work/start.log" 2>&1 ||
        fail "Apptainer cannot start an image here: $(tail -n 1 "$work/start.log")"
    exec_options=(--userns)
    if [ "$(id -u)" = 0 ]; then
        as_builder=(setpriv "--reuid=$(id -u nobody)" "--regid=$(id -g nobody)" --clear-groups
            env "HOME=$work/nobody" "APPTAINER_TMPDIR=$work/nobody")
        install -d -o nobody "$work/nobody"
    fi
}

apptainer_base() {
    echo "$registry" > "$work/base.txt"
    apptainer pull --force "$work/base.sif" "docker://$registry" && return
    bootstrap
    chown -R root:root "$work/debian" # a builder that is not root knows no other user
    apptainer build --force "$work/base.sif" "$work/debian"
    rm -r "$work/debian"
}

apptainer_build() {
    local options=() bind
    for bind in "${binds[@]}"; do options+=(--bind "$bind"); done
    options+=(--build-arg BOOTSTRAP=localimage --build-arg "BASE=$work/base.sif")
    "${as_builder[@]}" apptainer build --force "${quickly[@]}" "${options[@]}" "$1" \
        envs/containers/ddlbench.def
}

build_by_apptainer() {
    local built=$sif
    step base apptainer_base
    prepare_apptainer "$work/base.sif"
    [ ${#as_builder[@]} = 0 ] || built=$work/nobody/ddlbench.sif
    step build apptainer_build "$built"
    [ "$built" = "$sif" ] || mv "$built" "$sif"
}

in_apptainer() {
    apptainer exec --cleanenv "${exec_options[@]}" --home "$work/inside:/project" --pwd /project \
        "$sif" "$@"
}

# --- buildah

isolation=oci

buildah_base() {
    local container
    echo "$registry" > "$work/base.txt"
    if buildah pull --policy always "$registry"; then
        buildah tag "$registry" "$base"
        return
    fi
    bootstrap
    tar -C "$work/debian" -cf "$work/debian.tar" .
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/debian.tar" /
    buildah commit --quiet "$container" "$base"
    buildah rm "$container"
    rm -r "$work/debian" "$work/debian.tar"
}

build_by_buildah() {
    local container options=() bind
    step base buildah_base
    container=$(buildah from "$base")
    buildah run "$container" true 2> /dev/null || isolation=chroot
    buildah rm "$container" > /dev/null
    for bind in "${binds[@]}"; do options+=(--volume "$bind:ro"); done
    step build buildah build --isolation "$isolation" "${options[@]}" --build-arg "BASE=$base" \
        --file envs/containers/Dockerfile --tag localhost/ddlbench .
    if have apptainer; then
        step convert convert
        prepare_apptainer "$sif"
    fi
}

convert() { # the image of buildah into a file of Apptainer
    buildah push --quiet localhost/ddlbench "oci-archive:$work/ddlbench.tar"
    apptainer build --force "${quickly[@]}" "$sif" "oci-archive:$work/ddlbench.tar"
    rm -f "$work/ddlbench.tar"
}

in_buildah() {
    local container status=0
    container=$(buildah from localhost/ddlbench)
    buildah run --isolation "$isolation" --volume "$work/inside:/project" --workingdir /project \
        "$container" -- "$@" || status=$?
    buildah rm "$container" > /dev/null
    return "$status"
}

# --- what is trained

project() { # NAME: a folder of the workflow and its configuration, without results
    rm -rf "${work:?}/$1"
    mkdir "$work/$1"
    cp -r Snakefile rules workflow config profiles envs "$work/$1"
}

all_ok='
import json, sys
cells = [cell for cell in json.load(sys.stdin)["cells"] if not cell["geometry"].startswith("2x")]
bad = [cell for cell in cells if cell["state"] != "ok"]
wrong = [(cell["strategy"], cell["state"], cell["reason"]) for cell in bad]
print(len(cells), "cells on this machine; not ok:", wrong or "none")
sys.exit(bool(wrong))
'

train() { # CONFIGURATION PREFIX ...: run the experiment by PREFIX; every cell of one node must be ok
    local configuration=$1
    shift
    "$@" snakemake --profile profiles/local --configfile "$configuration"
    "$@" ddlbench status --configfile "$configuration"
    "$@" ddlbench status --configfile "$configuration" --json > "$work/status.json"
    "$@" python3 -c "$all_ok" < "$work/status.json"
}

outside() {
    (cd "$work/outside" && PATH=$environment/bin:$PATH "$@")
}

train_from_outside() {
    local arguments
    arguments=$(IFS=,; echo "${exec_options[*]}")
    project outside
    { cat config/sites/local.yaml; echo "container: {image: $sif, arguments: [$arguments]}"; } \
        > "$work/outside/config/sites/image.yaml"
    train envs/containers/trial.yaml outside
}

case $tool in
apptainer | buildah) ;;
*) fail "write which tool builds: try.sh apptainer, or try.sh buildah" ;;
esac
have "$tool" || fail "$tool is not installed"
mkdir -p "$work"
build_by_"$tool"
how="isolation $isolation"
[ "$tool" = buildah ] || how="as $([ ${#as_builder[@]} = 0 ] && id -un || echo nobody)"
say "built by $("$tool" --version), $how; base: $(cat "$work/base.txt")"
project inside
step inside train config/experiments/smoke.yaml "in_$tool"
tail -n 1 "$work/inside.log"
if have apptainer && [ -x "$environment/bin/snakemake" ]; then
    step outside train_from_outside
    tail -n 1 "$work/outside.log"
else
    say "nothing was run from outside: that needs Apptainer, and make setup"
fi
