"""Chakra execution traces (MLCommons), written in the wire format of Protocol Buffers.

::

    file     | length | GlobalMetadata | length | Node | length | Node | ...      length: a varint
    Node     id, name, type, ctrl_deps, data_deps, start and duration (us), attr
    attr     name and one value: comm_type, comm_size, comm_src, comm_dst, comm_tag, ...

Only what these traces need of the schema is written: some numbers, texts and messages. So no
library is needed.

Sources: mlcommons/chakra, schema/protobuf/et_def.proto, version 1.0.0; "Encoding" in the
documentation of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

VERSION = "1.0.0"
_VARINT, _DELIMITED = 0, 2  # wire types
# Numbers of fields in et_def.proto.
_ID, _NAME, _TYPE, _DATA, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 5, 6, 7, 10
_INT64, _BOOL, _STRING = 9, 27, 29  # of an attribute's value


class NodeType(IntEnum):
    """Kinds of nodes."""

    COMP = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


class Collective(IntEnum):
    """Collective operations, as ``comm_type`` names them."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    REDUCE_SCATTER = 7


@dataclass
class Node:
    """A piece of work.

    Args:
        number: its id, from 1 on; the file is in this order.
        name: for a reader.
        type: what it is.
        after: nodes that must have ended.
        start_us, duration_us: microseconds; 0 where nothing was recorded.
        attributes: integers are written as int64.
    """

    number: int
    name: str
    type: NodeType
    after: Sequence[int] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, int | bool | str] = field(default_factory=dict)


def trace_bytes(nodes: Iterable[Node], about: dict[str, str]) -> bytes:
    """The content of a file of one rank, which simulators want as ``<name>.<rank>.et``.

    Args:
        nodes: in the order of their numbers.
        about: attributes of the file.
    """
    metadata = _text(1, VERSION) + b"".join(
        _field(2, _attribute(name, value)) for name, value in about.items()
    )
    messages = (metadata, *map(encoded, nodes))
    return b"".join(_varint(len(message)) + message for message in messages)


def encoded(node: Node) -> bytes:
    """A node in the wire format."""
    after = b"".join(map(_varint, sorted(set(node.after))))
    return b"".join(
        (
            _number(_ID, node.number),
            _text(_NAME, node.name),
            _number(_TYPE, node.type),
            _field(_DATA, after) if after else b"",
            _number(_START, node.start_us) if node.start_us else b"",
            _number(_DURATION, node.duration_us) if node.duration_us else b"",
            *(_field(_ATTRIBUTE, _attribute(*pair)) for pair in node.attributes.items()),
        )
    )


def _attribute(name: str, value: int | bool | str) -> bytes:
    if isinstance(value, str):
        return _text(1, name) + _text(_STRING, value)
    kind = _BOOL if isinstance(value, bool) else _INT64
    return _text(1, name) + _number(kind, int(value))


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _DELIMITED) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as 64 bits of two's complement."""
    value &= 2**64 - 1
    groups = []
    while True:
        value, low = value >> 7, value & 0x7F
        groups.append(low | (0x80 if value else 0))
        if not value:
            return bytes(groups)
