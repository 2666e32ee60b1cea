#!/usr/bin/env bash
# Builds Horovod 0.28.1 from its source release and installs it.
#
#   build_horovod.sh PYTHON CACHE [build]
#
# With `build` it is not installed: its wheel is put into the cache, unless it lies there.
#
# Two changes to the release. It asks for C++14, torch 2.13's headers need C++20: that number in two
# CMakeLists.txt. And its process sets, which all-reduces use, forget the network interface
# (HOROVOD_GLOO_IFACE): they take the one that the host's name resolves to, or crash if it does not.
# The wheel depends on Python, torch and what it is built with (horovod_options.sh), so all of them
# are in the cache's folder name.
# On failure the reason stands in <environment>/horovod-missing.txt and the exit status is 1.
set -euo pipefail
python=$1
cache=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
release=0.28.1
prefix=$("$python" -c 'import sys; print(sys.prefix)')
reason=$prefix/horovod-missing.txt
tag=$("$python" -c 'import sys, torch; print("py%d%d-torch%s" % (*sys.version_info[:2], torch.__version__))')
with=$(bash "$here/horovod_options.sh" "$python")
wheels=$cache/horovod-$release-iface-$tag-${with:-cpu}
wheels=${wheels// /-}

fail() {
    printf '%s\n' "$1" > "$reason"
    exit 1
}

# Launched by hand, cmake and g++ say in one line what is missing.
for tool in g++ cmake; do
    command -v "$tool" >/dev/null || compiler_missing=${compiler_missing:-$tool}
done

if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
    [ -z "${compiler_missing:-}" ] || fail "no $compiler_missing is installed, and Horovod must be compiled"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$python" -m pip install --quiet --disable-pip-version-check --constraint "$here/constraints.txt" \
        cloudpickle psutil pyyaml packaging cffi
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary horovod \
        --no-build-isolation --dest "$work" "horovod==$release" || fail "its source could not be downloaded"
    tar -xf "$work/horovod-$release.tar.gz" -C "$work"
    source=$work/horovod-$release
    sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' \
        "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
    sed -i '/::InitializeForProcessSet/,/CreateDevice/ s/iface = gloo_iface_/iface = global_context.gloo_iface_/' \
        "$source/horovod/common/gloo/gloo_context.cc"
    options=(HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1)
    # MPI only where the site asks for it; NCCL where there is CUDA, in torch and to compile with.
    [ -n "${HOROVOD_WITH_MPI:-}" ] || options+=(HOROVOD_WITHOUT_MPI=1)
    case $with in
        *-cuda*) options+=("HOROVOD_GPU_OPERATIONS=${HOROVOD_GPU_OPERATIONS:-NCCL}") ;;
    esac
    log=$prefix/horovod-build.log
    # Headers of gcc 13 and later no longer bring <string> and <cstdint> along for others.
    options+=("CXXFLAGS=${CXXFLAGS:-} -include cstdint -include string")
    # CMake 4 refuses the old minimum versions of the vendored libraries unless told otherwise.
    if ! env "${options[@]}" CMAKE_POLICY_VERSION_MINIMUM=3.5 PATH="$prefix/bin:$PATH" \
        MAKEFLAGS="-j${DDLBENCH_BUILD_JOBS:-$(nproc)}" \
        "$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --verbose \
        --wheel-dir "$work/wheels" "$source" > "$log" 2>&1; then
        fail "it did not compile; the log is $log"
    fi
    mkdir -p "$(dirname "$wheels")"
    rm -rf "$wheels"
    mv "$work/wheels" "$wheels"
fi
[ "${3:-}" != build ] || exit 0
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheels"/horovod-*.whl \
    || fail "its wheel could not be installed"
"$python" -W ignore -c 'import horovod.torch' 2> "$reason.log" \
    || fail "it was built but does not import: $(tail -n 1 "$reason.log")"
rm -f "$reason" "$reason.log"
