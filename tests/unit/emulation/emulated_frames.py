"""Frames as the kernel hands them over a TUN device, for tests of what is done to them."""

import struct

SOURCE, TARGET = bytes([10, 213, 78, 11]), bytes([10, 213, 78, 12])
VIRTIO = struct.Struct("=BBHHHH")
TCP_HEADERS, UDP_HEADERS = 52, 28


def folded(total):
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def words(data):
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


def pseudo_sum(protocol, length):
    return folded(words(SOURCE) + words(TARGET) + protocol + length)


def _network(protocol, length, identification):
    head = bytearray(
        struct.pack("!BBHHHBBH", 0x45, 0, length, identification, 0x4000, 64, protocol, 0)
        + SOURCE
        + TARGET
    )
    struct.pack_into("!H", head, 10, ~folded(words(head)) & 0xFFFF)
    return bytes(head)


def tcp(payload, packet_bytes=1000, sequence=7, flags=0x18, identification=5):
    """A frame of TCP with a header of 32 bytes; a bundle if the payload is beyond one packet."""
    length = TCP_HEADERS + len(payload)
    checksum = pseudo_sum(6, length - 20)
    head = struct.pack("!HHIIBBHHH", 1, 2, sequence, 9, 0x80, flags, 100, checksum, 0) + bytes(12)
    bundle = (1, packet_bytes) if len(payload) > packet_bytes else (0, 0)
    virtio = VIRTIO.pack(1, bundle[0], TCP_HEADERS, bundle[1], 20, 16)
    return virtio + _network(6, length, identification) + head + payload


def udp(payload, packet_bytes=1000):
    """The same of UDP."""
    length = UDP_HEADERS + len(payload)
    head = struct.pack("!HHHH", 1, 2, length - 20, pseudo_sum(17, length - 20))
    bundle = (5, packet_bytes) if len(payload) > packet_bytes else (0, 0)
    virtio = VIRTIO.pack(1, bundle[0], UDP_HEADERS, bundle[1], 20, 6)
    return virtio + _network(17, length, 5) + head + payload


def payload_of(frame, headers):
    return frame[VIRTIO.size + headers :]
