"""How much slower a device of the test bed computes that was idle before, by length of the work.

A device with a share of 0.4 core should take 2.5 times as long as a core for any work. Its quota is
refilled each period, so a device that was idle has it left and starts at full speed::

    quota 8 ms of 20 ms, 10 ms of work    |XXXXXXXX............XX|     22 ms where 25 were due
    quota 1 ms of 2.5 ms                  |X..X..X..X..X..X..X..X|

(The kernel looks at quotas when its clock ticks, so that short periods are not kept this exactly.)
Takes two minutes on a quiet machine and writes docs/validation/testbed/bursts.csv: a row a period
and length.
"""

from __future__ import annotations

import json
import sys

import pandas as pd
from bed_study import ROOT
from testbed import Options, TestBed

OUT = ROOT / "docs" / "validation" / "testbed" / "bursts.csv"
SHARE = 0.4
PERIODS_US = (2_500, 5_000, 10_000, 20_000)
WORK_MS = (1, 2, 4, 8, 16, 50, 200)
# Prints seconds per second of processor time, of each length.
_PROGRAM = """
import json, random, sys, time
found = []
for work_ms in json.loads(sys.argv[1]):
    took_s, count = 0.0, 40
    for _ in range(count):
        time.sleep(0.010 + 0.005 * random.random())
        begin_s, end_cpu_s = time.perf_counter(), time.process_time() + work_ms / 1000
        while time.process_time() < end_cpu_s:
            pass
        took_s += time.perf_counter() - begin_s
    found.append(took_s / count / (work_ms / 1000))
print(json.dumps(found))
"""


def main() -> None:
    """Measure a device with quotas of each period."""
    rows = []
    for period_us in PERIODS_US:
        options = Options(nodes=1, devices=1, cpu_share=SHARE, cpu_period_us=period_us)
        with TestBed(options) as bed:
            bed.wait_idle()
            words = (sys.executable, "-c", _PROGRAM, json.dumps(WORK_MS))
            slower = json.loads(bed.srun("--gres=gpu:1", *words).stdout)
        rows += [
            {"period_ms": period_us / 1000, "work_ms": work_ms, "times_slower": times}
            for work_ms, times in zip(WORK_MS, slower, strict=True)
        ]
    table = pd.DataFrame(rows)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(OUT, index=False, float_format="%.3g")
    print(table.pivot(index="period_ms", columns="work_ms", values="times_slower").round(2))


if __name__ == "__main__":
    main()
