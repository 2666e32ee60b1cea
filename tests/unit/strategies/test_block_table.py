"""What planning knows of the built-in networks is what the networks are."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import ddlbench.planning.block_table as planned
from ddlbench.experiment.pairs import pairs
from ddlbench.experiment.registry import NETWORKS
from ddlbench.strategies.pipedream.block_table import rows_of

FILE = Path(planned.__file__).with_name("block_table.csv")


@pytest.mark.parametrize("network", NETWORKS)
def test_the_table_is_up_to_date(network: str) -> None:
    with FILE.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == planned.COLUMNS
    own = [spec for name, spec in pairs() if name == network]
    found = [tuple(map(str, row)) for spec in own for row in rows_of(network, spec)]
    assert found == [tuple(row) for row in rows if row[0] == network]
