# ruff: noqa: F401 - the names of the package
"""Pipeline schedules as data: who does what, in which order, without torch."""

from ddlbench.planning.schedules.action import Action, InvalidSchedule, Schedule
from ddlbench.planning.schedules.assemble import replicate
from ddlbench.planning.schedules.check import blocked, check, most_held
from ddlbench.planning.schedules.event_graph import Event, EventGraph, Held
from ddlbench.planning.schedules.events import EAGER, Messaging, events_of, messaging_of
from ddlbench.planning.schedules.flushing import gpipe, interleaved_1f1b, one_f_one_b
from ddlbench.planning.schedules.pipedream import model_parallel, pipedream, weight_version
from ddlbench.planning.schedules.replay import (
    Durations,
    Links,
    StageDurations,
    Timeline,
    no_links,
    replay,
)
from ddlbench.planning.schedules.zero_bubble import interleaved_zero_bubble, zero_bubble_v
