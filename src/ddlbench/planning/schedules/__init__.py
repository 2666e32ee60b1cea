# ruff: noqa: F401 - the names of the package
"""Pipeline schedules as data: who does what, in which order, without torch."""

from ddlbench.planning.schedules.check import blocked, check
from ddlbench.planning.schedules.events import (
    EAGER,
    Durations,
    Links,
    Messaging,
    StageDurations,
    Timeline,
    events_of,
    messaging_of,
    no_links,
    passes_end_s,
    replay,
)
from ddlbench.planning.schedules.orders import (
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    model_parallel,
    one_f_one_b,
    pipedream,
    weight_version,
    zero_bubble_v,
)
from ddlbench.planning.schedules.schedule import (
    Action,
    Event,
    EventGraph,
    Held,
    InvalidSchedule,
    Schedule,
    replicate,
)
