"""Bundles of packets: what they weigh, and what is left when packets of them are lost."""

import struct

import pytest
from emulated_frames import (
    TARGET,
    TCP_HEADERS,
    UDP_HEADERS,
    VIRTIO,
    folded,
    payload_of,
    pseudo_sum,
    tcp,
    udp,
    words,
)
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.emulation.switch import destination, is_ipv4, measure, without_lost

PAYLOAD = bytes(index % 251 for index in range(4500))


def test_a_bundle_weighs_what_its_packets_weigh():
    assert measure(tcp(b"")) == (1, 52)
    assert measure(tcp(PAYLOAD[:1000])) == (1, 1052)
    # 4500 bytes in packets of 1000: five, each with its own headers.
    assert measure(tcp(PAYLOAD)) == (5, 4500 + 5 * 52)
    assert measure(udp(PAYLOAD)) == (5, 4500 + 5 * 28)


def test_address_and_version():
    frame = tcp(PAYLOAD)
    assert is_ipv4(frame)
    assert destination(frame) == TARGET
    ipv6 = bytes(10) + bytes([0x60]) + bytes(39)
    assert not is_ipv4(ipv6)
    assert not is_ipv4(b"short")


def test_nothing_lost_is_the_same_frame():
    frame = tcp(PAYLOAD)
    assert without_lost(frame, [True] * 5) == [frame]
    assert without_lost(frame, [False] * 5) == []


def test_one_lost_packet_leaves_two_frames():
    before, after = without_lost(tcp(PAYLOAD), [True, True, False, True, True])
    assert payload_of(before, TCP_HEADERS) == PAYLOAD[:2000]
    assert payload_of(after, TCP_HEADERS) == PAYLOAD[3000:]
    assert measure(before) == (2, 2104)
    assert measure(after) == (2, 1500 + 104)


def test_flags_stay_where_they_belong():
    finished = tcp(PAYLOAD, flags=0x80 | 0x18 | 0x01)  # CWR, ACK and PSH, FIN
    pieces = without_lost(finished, [True, False, True, False, True])
    assert [piece[10 + 20 + 13] for piece in pieces] == [0x90, 0x10, 0x19]


@pytest.mark.parametrize(
    ("make", "headers", "protocol", "checksum_at"),
    [(tcp, TCP_HEADERS, 6, 36), (udp, UDP_HEADERS, 17, 26)],
)
@given(kept=st.lists(st.booleans(), min_size=5, max_size=5))
def test_kept_packets_arrive_whole(make, headers, protocol, checksum_at, kept):
    frames = without_lost(make(PAYLOAD), kept)
    assert sum(measure(frame)[0] for frame in frames) == sum(kept)
    wanted = b"".join(
        PAYLOAD[index * 1000 : (index + 1) * 1000] for index, keeps in enumerate(kept) if keeps
    )
    assert b"".join(payload_of(frame, headers) for frame in frames) == wanted
    for frame in frames:
        packet = frame[VIRTIO.size :]
        assert struct.unpack_from("!H", packet, 2)[0] == len(packet)
        assert folded(words(packet[:20])) == 0xFFFF, "the IP checksum"
        (checksum,) = struct.unpack_from("!H", packet, checksum_at)
        assert checksum % 0xFFFF == pseudo_sum(protocol, len(packet) - 20) % 0xFFFF
        _, kind, _, packet_bytes, _, _ = VIRTIO.unpack_from(frame)
        assert (kind != 0) == (measure(frame)[0] > 1)
        assert packet_bytes in (0, 1000)


@given(kept=st.lists(st.booleans(), min_size=5, max_size=5))
def test_sequence_numbers_are_those_of_the_first_byte(kept):
    sequence = 2**32 - 1500
    for frame in without_lost(tcp(PAYLOAD, sequence=sequence), kept):
        (number,) = struct.unpack_from("!I", frame, 10 + 20 + 4)
        at = (number - sequence) % 2**32
        assert payload_of(frame, TCP_HEADERS) == PAYLOAD[at : at + len(frame) - 10 - 52]


def test_udp_lengths_are_those_of_the_piece():
    (piece,) = without_lost(udp(PAYLOAD), [False, False, True, True, False])
    assert struct.unpack_from("!H", piece, 10 + 20 + 4)[0] == 8 + 2000
