"""How long SLURM suspended a job, from ``scontrol --oneliner show job ID``.

::

    StartTime       SuspendTime   (suspended)        SuspendTime   (resumed)
        | runs            |                              |  runs
        |<----------- SecsPreSuspend, without ---------->|
        |            what the job was suspended          |

``SuspendTime`` is when the job was last suspended or resumed, ``None`` if it never was.
``SecsPreSuspend`` is how long it had run until it was last suspended, over all its stretches. So
the time from its start to its last resumption, less these seconds, is what it was suspended.
"""

from __future__ import annotations

import re
from datetime import datetime

_FIELD = re.compile(r"\b(StartTime|SuspendTime|SecsPreSuspend)=(\S+)")


def suspended_s(text: str, since_s: float = 0.0) -> float:
    """Seconds for which a running job was suspended, if it was resumed after ``since_s``; else 0.

    Args:
        text: answer of scontrol about one job, with times as SLURM writes them by default: local
            ones, in whole seconds.
        since_s: seconds since 1970; at most the time from then to the last resumption counts.
    """
    fields = dict(_FIELD.findall(text))
    try:
        start_s = datetime.fromisoformat(fields["StartTime"]).timestamp()
        resumed_s = datetime.fromisoformat(fields["SuspendTime"]).timestamp()
        ran_s = float(fields["SecsPreSuspend"])
    except (KeyError, ValueError):  # never suspended, or no answer
        return 0.0
    return max(0.0, min(resumed_s - start_s - ran_s, resumed_s - since_s))
