"""Emulated links against their settings: writes docs/validation/link/links.csv.

Delays of 1, 10 and 100 ms with rates of 250, 500 and 1000 Mbit/s and no loss, then losses of 1 and
10 %; each three times, each with links of its own. A row says too how busy the machine was before.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from ddlbench.emulation import EmulatedNodes, available
from ddlbench.experiment.fabric import LinkCondition

OUT = Path(__file__).resolve().parents[1] / "docs" / "validation" / "link" / "links.csv"
LATENCIES_MS = (1, 10, 100)
RATES_MBIT = (250, 500, 1000)
LOSSES_PERCENT = (1, 10)
REPEATS = 3


def conditions() -> list[dict[str, Any]]:
    """What is set, as a person writes it."""
    wanted = [
        {"latency_ms": latency, "bandwidth_mbit_per_s": rate}
        for latency, rate in product(LATENCIES_MS, RATES_MBIT)
    ]
    lossy = {"latency_ms": 10, "bandwidth_mbit_per_s": 500}
    return wanted + [{**lossy, "loss_percent": loss} for loss in LOSSES_PERCENT]


def row(wanted: dict[str, Any], repeat: int) -> dict[str, Any]:
    """Make links of a condition, probe them."""
    others = psutil.cpu_percent(1.0) * os.cpu_count() / 100
    with EmulatedNodes(LinkCondition.from_mapping(wanted, "validation"), 2) as nodes:
        probe = nodes.probe()
    setting, measured = probe["setting"], probe["measured"]
    links, loss, used = measured["links"], measured["loss"], measured["usage"]
    rate = setting["bandwidth_bits_per_s"]
    return {
        "repeat": repeat,
        "backend": links["backend"],
        "mtu": setting["mtu"],
        "set_delay_s": setting["latency_s"],
        "measured_delay_s": measured["one_way_delay_s"],
        "delay_error": _error(measured["one_way_delay_s"], setting["latency_s"]),
        "compensation_s": links.get("compensation_s"),
        "set_rate_bits_per_s": rate,
        "measured_rate_bits_per_s": measured["rate_bits_per_s"],
        "rate_error": _error(measured["rate_bits_per_s"], rate),
        "set_loss": setting["loss"],
        "packets_sent": loss["sent"],
        "packets_lost": loss["lost"],
        "loss_low_95": loss["interval"]["low"],
        "loss_high_95": loss["interval"]["high"],
        "loss_within_95": loss["interval"]["low"] <= setting["loss"] <= loss["interval"]["high"],
        "tcp_congestion_control": measured["tcp"][0]["congestion_control"],
        "tcp_goodput_bits_per_s": measured["tcp"][0]["goodput_bits_per_s"],
        "relay_busiest_second_share": used.get("busiest_second_share"),
        "cores_busy_before": others,
        "ok": probe["ok"],
        "misses": "; ".join(probe["misses"]),
    }


def _error(measured: float | None, wanted: float) -> float | None:
    return None if measured is None else (measured - wanted) / wanted


def main() -> None:
    """Probe every condition and keep what came of it, good or bad."""
    reason = available()
    if reason is not None:
        sys.exit(f"no emulated links here: {reason}")
    rows = []
    for repeat, wanted in product(range(REPEATS), conditions()):
        rows.append(row(wanted, repeat))
        print(wanted, "ok" if rows[-1]["ok"] else rows[-1]["misses"], flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(OUT, index=False, float_format="%.6g")
    print(f"{OUT}: {sum(row['ok'] for row in rows)} of {len(rows)} links as set")


if __name__ == "__main__":
    main()
