"""A TUN device inside another network namespace, with the kernel's offloads where it has them.

What the namespace sends over the device is read from its file, what is written arrives there. With
offloads a read or write is a bundle of packets of TCP or (from Linux 6.2) UDP: see ``frames``.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

__all__ = ["FRAME_BYTES", "open_tun"]

# The largest IP packet and the header before it.
FRAME_BYTES = 65_535 + 10

# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUM, _TSO4, _TSO6, _TSO_ECN, _USO4, _USO6 = 0x01, 0x02, 0x04, 0x08, 0x20, 0x40
_TCP = _CHECKSUM | _TSO4 | _TSO6 | _TSO_ECN
_OFFLOADS = {"tcp and udp": _TCP | _USO4 | _USO6, "tcp": _TCP, "none": 0}
# linux/sched.h
_CLONE_NEWNET = 0x40000000


def open_tun(namespace: Path, name: str) -> tuple[int, str]:
    """Make the device ``name``, and move this thread into the namespace that it is in.

    The device lasts as long as its file. It lies in the namespace in which /dev/net/tun is opened;
    to go back would need rights outside that a user namespace does not give, so nobody does.

    Args:
        namespace: a file such as /proc/<pid>/ns/net.
        name: of the device.

    Returns:
        the device's file, not blocking; what is bundled: "tcp and udp", "tcp" or "none".

    Raises:
        OSError: the kernel does not let us.
    """
    library = ctypes.CDLL(None, use_errno=True)
    with namespace.open("rb") as place:
        if library.setns(place.fileno(), _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return device, _offload(device)


def _offload(device: int) -> str:
    for bundled, bits in _OFFLOADS.items():
        try:
            fcntl.ioctl(device, _TUNSETOFFLOAD, bits)
        except OSError:
            continue
        return bundled
    return "none"
