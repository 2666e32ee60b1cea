#!/usr/bin/env bash
# Runs a command on this machine's files under another kernel, one that has netem.
#
#   bash validation/netem_guest.sh [--keep FOLDER] COMMAND...    in the folder where it is called
#   bash validation/netem_guest.sh ddlbench links probe --latency-ms 100 --backend netem
#   python validation/netem.py                                   a whole study in the guest
#
# Needs root, qemu-system-x86, busybox-static, cpio, and a Debian kernel package, which is downloaded
# with apt-get and unpacked, not installed (KERNEL_DEB names one that is there). QEMU computes what
# the guest does, which is slow. NETEM_GUEST_ACCEL=kvm is faster where nested machines work.
#
#   this machine's /  --9p, read-only-->  lower layer -.
#                      the guest's memory  upper layer -+-> the guest's /
#   this machine's FOLDER  <--9p-->  the same path in the guest
#
# What the guest writes in FOLDER stays, also if the guest is stopped. Of all else only the console
# is kept.
set -euo pipefail
keep=
if [ "${1:-}" = --keep ]; then
    [ -d "${2:-}" ] || { echo "--keep ${2:-}: no such folder; make it first" >&2; exit 2; }
    keep=$(realpath "$2")
    shift 2
fi
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
work=${NETEM_GUEST_WORK:-${TMPDIR:-/tmp}/ddlbench-netem-guest}
memory_mb=${NETEM_GUEST_MB:-3000}
mkdir -p "$work"

for program in qemu-system-x86_64 busybox cpio; do
    command -v "$program" >/dev/null || {
        echo "$program is missing: apt-get install qemu-system-x86 busybox-static cpio" >&2
        exit 1
    }
done

if [ ! -d "$work/kernel/boot" ]; then
    if [ -z "${KERNEL_DEB:-}" ]; then
        package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
        (cd "$work" && apt-get download --quiet "$package" >&2)
        KERNEL_DEB=$(ls "$work/$package"_*.deb)
    fi
    dpkg-deb --extract "$KERNEL_DEB" "$work/kernel"
fi
image=$(ls "$work"/kernel/boot/vmlinuz-*)
release=${image##*/vmlinuz-}
busybox depmod -b "$work/kernel" "$release"

root=$work/initramfs
rm -rf "$root"
mkdir -p "$root"/{bin,lib/modules,proc,sys,dev,lower,upper,new}
cp "$(command -v busybox)" "$root/bin/busybox"
source=$work/kernel/lib/modules/$release
mkdir -p "$root/lib/modules/$release/kernel"
for folder in fs/9p fs/netfs fs/fscache fs/overlayfs net drivers/net/veth.ko drivers/net/tun.ko \
    drivers/virtio drivers/block/virtio_blk.ko lib arch crypto; do
    [ -e "$source/kernel/$folder" ] || continue
    mkdir -p "$root/lib/modules/$release/kernel/$(dirname "$folder")"
    cp -r "$source/kernel/$folder" "$root/lib/modules/$release/kernel/$folder"
done
cp "$source"/modules.* "$root/lib/modules/$release/"
{
    printf 'cd %q\n' "$PWD"
    for name in PATH PYTHONPATH HOME; do printf 'export %s=%q\n' "$name" "${!name:-}"; done
    printf '%q ' "$@"
    # The console is no terminal to show bars on.
    printf ' 2>&1 | cat\necho "netem-guest: exit status ${PIPESTATUS[0]}"\nsync\n/netem-guest/busybox poweroff -f\n'
} > "$root/command.sh"
cat > "$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in virtio_pci 9pnet_virtio 9p overlay veth bridge tun sch_netem sch_tbf sch_fq; do
    modprobe "$module" || echo "netem-guest: no module $module"
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=1048576 root /lower
mount -t tmpfs -o size=80% upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /new
mkdir /new/netem-guest
cp /command.sh /new/netem-guest/command.sh
cp /bin/busybox /new/netem-guest/busybox
keep=$(cat /kept-folder)
if [ -n "$keep" ]; then
    # Files that are mapped into memory and shared need cache=mmap.
    mount -t 9p -o trans=virtio,version=9p2000.L,cache=mmap,msize=1048576 keep "/new$keep" || poweroff -f
fi
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/shm /new/dev/pts /new/dev/net
mount -t tmpfs shm /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs run /new/run
ip link set lo up
hostname netem-guest
echo "127.0.0.1 localhost netem-guest" > /new/etc/hosts
echo "netem-guest: $(uname -r)"
# Not chroot: who enters a mount namespace starts at its real root.
exec switch_root /new /bin/bash /netem-guest/command.sh
INIT
printf '%s' "$keep" > "$root/kept-folder"
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) > "$work/initramfs.gz"

shares=(-virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap)
[ -z "$keep" ] || shares+=(-virtfs "local,path=$keep,mount_tag=keep,security_model=none,multidevs=remap")

qemu-system-x86_64 -accel "${NETEM_GUEST_ACCEL:-tcg,thread=multi}" -cpu max -m "$memory_mb" -smp "${NETEM_GUEST_CORES:-2}" -nographic \
    -no-reboot -nic none -kernel "$image" -initrd "$work/initramfs.gz" \
    -append "console=ttyS0 ${NETEM_GUEST_KERNEL:-quiet} panic=-1 loglevel=3 mitigations=off no_timer_check" \
    "${shares[@]}" < /dev/null | sed -u 's/\r//g' | tee "$work/console.log"
grep -q '^netem-guest: exit status 0$' "$work/console.log"
