"""links.json: how fast the devices of a site talk to each other, one file a fabric.

Measured by ``ddlbench.interconnect`` or given by hand in the site file; read by predictors.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

from ddlbench.experiment.document import Document
from ddlbench.experiment.errors import ConfigError

__all__ = ["LINKS_VERSION", "InvalidLinks", "read_links", "sample_in_words", "write_links"]

LINKS_VERSION = 1
_MATRICES = ("bandwidth_bytes_per_s", "latency_s")


class InvalidLinks(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A links file that is missing, truncated, of another version, or wrong in itself."""


_DOCUMENT = Document("links", "links file", InvalidLinks)


def write_links(path: Path, links: dict[str, Any]) -> None:
    """Check and write a links file atomically.

    Raises:
        InvalidLinks: it does not fit the schema, or a matrix is not square.
    """
    _check_shapes(links, str(path))
    _DOCUMENT.write(path, links)


def read_links(path: Path) -> dict[str, Any]:
    """Read and check a links file.

    Raises:
        InvalidLinks: there is none, or it is not what the schema says.
    """
    if not path.is_file():
        raise InvalidLinks(
            f"{path}: no such links file; measure it with `snakemake --profile ... links`"
        )
    links = _DOCUMENT.read(path)
    _check_shapes(links, str(path))
    return links


def sample_in_words(sampled: Mapping[str, Any]) -> str:
    """What a matrix with holes says of them."""
    return (
        f"{sampled['measured_pairs']:,} of {sampled['all_pairs']:,} measured ({sampled['rule']}); "
        "the others are empty"
    )


def _check_shapes(links: dict[str, Any], where: str) -> None:
    """Matrices are square over their endpoints; what they hold can be."""
    for index, pair in enumerate(links.get("pairs", [])):
        size = len(pair["endpoints"])
        place = f"{where}: pairs.{index}"
        if len(pair["nodes"]) != size:
            raise InvalidLinks(f"{place}: {size} endpoints, but {len(pair['nodes'])} node indices")
        for key in _MATRICES:
            if len(pair[key]) != size or any(len(row) != size for row in pair[key]):
                raise InvalidLinks(f"{place}.{key}: not {size} rows of {size} numbers")
        for row, column in permutations(range(size), 2):
            _check_link(pair, row, column, place)


def _check_link(pair: dict[str, Any], row: int, column: int, place: str) -> None:
    """Nothing is negative; a hole is in both matrices, and only where a sample is declared."""
    values = {key: pair[key][row][column] for key in _MATRICES}
    holes = [key for key, value in values.items() if value is None]
    if len(holes) == len(values) and pair.get("sampled"):
        return
    if holes:
        raise InvalidLinks(
            f"{place}.{holes[0]}: a hole at row {row}, column {column}: measure that pair again"
        )
    for key, value in values.items():
        if value < 0 or (key == "bandwidth_bytes_per_s" and value == 0):
            raise InvalidLinks(
                f"{place}.{key}: {value} at row {row}, column {column}: "
                "a bandwidth is above zero, a latency not below"
            )
