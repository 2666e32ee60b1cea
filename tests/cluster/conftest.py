"""The fault table is printed after the tests, and kept in $DDLBENCH_FAULT_TABLE if that is set."""

from __future__ import annotations

import os
from pathlib import Path

import fault_table


def pytest_terminal_summary(terminalreporter):
    if not fault_table.ROWS:
        return
    terminalreporter.section("faults in real runs")
    terminalreporter.write_line(fault_table.text())
    target = os.environ.get("DDLBENCH_FAULT_TABLE")
    if target:
        fault_table.save(Path(target))
