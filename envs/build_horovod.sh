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
# are in the cache's folder name. The NCCL is torch's own unless HOROVOD_NCCL_HOME names another one.
# Where it does not compile for GPUs it is built for CPUs only: <environment>/horovod-no-gpu.txt says
# why. On failure the reason stands in <environment>/horovod-missing.txt and the exit status is 1.
set -euo pipefail
python=$1
cache=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
release=0.28.1
prefix=$("$python" -c 'import sys; print(sys.prefix)')
reason=$prefix/horovod-missing.txt
tag=$("$python" -c 'import sys, torch; print("py%d%d-torch%s" % (*sys.version_info[:2], torch.__version__))')
without_gpu=$prefix/horovod-no-gpu.txt
with=$(bash "$here/horovod_options.sh" "$python")

wheels_with() { # OPTIONS: the folder in the cache
    local name=$cache/horovod-$release-iface-$tag-${1:-cpu}
    printf '%s\n' "${name// /-}"
}

fail() {
    printf '%s\n' "$1" > "$reason"
    exit 1
}

# Launched by hand, cmake and g++ say in one line what is missing.
for tool in g++ cmake; do
    command -v "$tool" >/dev/null || compiler_missing=${compiler_missing:-$tool}
done

fetch_source() {
    "$python" -m pip install --quiet --disable-pip-version-check --constraint "$here/constraints.txt" \
        cloudpickle psutil pyyaml packaging cffi
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary horovod \
        --no-build-isolation --dest "$work" "horovod==$release" || fail "its source could not be downloaded"
    tar -xf "$work/horovod-$release.tar.gz" -C "$work"
    sed -i 's/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD 20)/' \
        "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
    sed -i '/::InitializeForProcessSet/,/CreateDevice/ s/iface = gloo_iface_/iface = global_context.gloo_iface_/' \
        "$source/horovod/common/gloo/gloo_context.cc"
}

# Prints the folder of the NCCL that torch's wheel brings; nothing if it brings none.
nccl_of_torch() {
    "$python" - <<'EOP' || true
import importlib.util, pathlib
spec = importlib.util.find_spec("nvidia")
folders = [pathlib.Path(place, "nccl") for place in spec.submodule_search_locations] if spec else []
print(next((folder for folder in folders if (folder / "include" / "nccl.h").exists()), ""))
EOP
}

gpu_options() { # prints a variable a line
    echo "HOROVOD_GPU_OPERATIONS=${HOROVOD_GPU_OPERATIONS:-NCCL}"
    # CMake and torch take the folder above nvcc's: wrong where nvcc is a script that calls another.
    local top library
    top=$(nvcc --dryrun any.cu 2>&1 | sed -n 's/^#$ TOP=//p') || true
    [ -z "$top" ] || printf '%s\n' "CUDAToolkit_ROOT=$(realpath "$top")" "CUDA_HOME=$(realpath "$top")"
    [ -z "${HOROVOD_NCCL_HOME:-}${HOROVOD_NCCL_INCLUDE:-}${HOROVOD_NCCL_LIB:-}" ] || return 0
    # A process has one libnccl.so.2, and torch has loaded its own before Horovod is imported.
    library=$(nccl_of_torch)
    if [ -f "$library/include/nccl.h" ] && [ -f "$library/lib/libnccl.so.2" ]; then
        mkdir -p "$work/nccl"
        ln -sfn "$library/include" "$work/nccl/include"
        ln -sfn "$library/lib/libnccl.so.2" "$work/nccl/libnccl.so"
        printf '%s\n' "HOROVOD_NCCL_INCLUDE=$work/nccl/include" "HOROVOD_NCCL_LIB=$work/nccl" HOROVOD_NCCL_LINK=SHARED
    fi
}

build_wheel() { # OPTIONS LOG
    local options=(HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1)
    # MPI only where the site asks for it; NCCL where there is CUDA, in torch and to compile with.
    [ -n "${HOROVOD_WITH_MPI:-}" ] || options+=(HOROVOD_WITHOUT_MPI=1)
    case $1 in
        *-cuda*) mapfile -t -O "${#options[@]}" options < <(gpu_options) ;;
        # A torch for CUDA beside nvcc alone makes it one for GPUs.
        *) options+=(HOROVOD_GPU_OPERATIONS=) && sed -i 's/torch.version.cuda is not None/False/' \
            "$source/cmake/Modules/FindPytorch.cmake" ;;
    esac
    # Headers of gcc 13 and later no longer bring <string> and <cstdint> along for others.
    options+=("CXXFLAGS=${CXXFLAGS:-} -include cstdint -include string")
    # CMake 4 refuses the old minimum versions of the vendored libraries unless told otherwise.
    rm -rf "$source/build" "$work/wheels"
    env "${options[@]}" CMAKE_POLICY_VERSION_MINIMUM=3.5 PATH="$prefix/bin:$PATH" \
        MAKEFLAGS="-j${DDLBENCH_BUILD_JOBS:-$(nproc)}" \
        "$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --verbose \
        --wheel-dir "$work/wheels" "$source" > "$2" 2>&1 || return 1
    rm -rf "$(wheels_with "$1")"
    mkdir -p "$cache"
    mv "$work/wheels" "$(wheels_with "$1")"
}

is_kept() { ls "$(wheels_with "$1")"/horovod-*.whl >/dev/null 2>&1; }

for_cpus() { # OPTIONS: those without CUDA
    local word words=()
    for word in $1; do
        case $word in *-cuda*) ;; *) words+=("$word") ;; esac
    done
    printf '%s\n' "${words[*]:-}"
}

# The second call of a set-up does not compile for GPUs again.
[ "${3:-}" = build ] || [ ! -f "$without_gpu" ] || is_kept "$with" || with=$(for_cpus "$with")
if ! is_kept "$with"; then
    [ -z "${compiler_missing:-}" ] || fail "no $compiler_missing is installed, and Horovod must be compiled"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    source=$work/horovod-$release
    log=$prefix/horovod-build.log
    fetch_source
    if ! build_wheel "$with" "$log"; then
        less=$(for_cpus "$with")
        [ "$less" != "$with" ] || fail "it did not compile; the log is $log"
        mv "$log" "${log%.log}-gpu.log"
        printf '%s\n' "it did not compile for GPUs; the log is ${log%.log}-gpu.log" > "$without_gpu"
        with=$less
        is_kept "$with" || build_wheel "$with" "$log" || fail "it did not compile; the log is $log"
    fi
fi
case $with in *-cuda*) rm -f "$without_gpu" ;; esac
[ "${3:-}" != build ] || exit 0
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$(wheels_with "$with")"/horovod-*.whl \
    || fail "its wheel could not be installed"
"$python" -W ignore -c 'import horovod.torch' 2> "$reason.log" \
    || fail "it was built but does not import: $(tail -n 1 "$reason.log")"
rm -f "$reason" "$reason.log"
