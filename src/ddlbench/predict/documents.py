"""Files that predictions, choices and searches leave, as typed dictionaries.

predictions.json   ddlbench predict accuracy           PredictionsFile
choice.json        ddlbench recommend          ChoiceFile; the report's advice.json is one, too
tuning.json        ddlbench recommend tune               TuningFile
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Len
from typing_extensions import TypedDict

from ddlbench.common.form import Amount, Count, Natural, Positive, Share, typed

VERSION = 1

Interval = Annotated[list[Positive], Len(2, 2)]


@typed
class RankedCandidate(TypedDict):
    """One strategy of a ranking."""

    strategy: str
    geometry: str
    step_s: Positive
    """Median of the measured steps, else predicted and moved by measured steps of others."""
    interval_s: Interval
    """Holds the step in 90 % of cases."""
    basis: Literal["measured", "predicted"]
    speedup: Positive | None
    """One device's step over this one; at most ``bound`` where one of them is predicted."""
    speedup_basis: Literal["measured", "predicted"] | None
    """Measured where both steps are."""
    bound: Positive | None
    """Highest speed-up that it can reach."""
    chance: Share | None
    """Probability that it is the fastest."""
    fits: bool | None
    label: str
    cell_id: str
    predicted_step_s: Positive | None
    """By the prediction alone."""
    predicted_interval_s: Interval | None
    """90 %, by the prediction alone."""
    measured_step_s: Positive | None
    runs: Natural
    predictor: str | None
    compute_s: float | None
    communication_s: float | None
    exposed_communication_s: float | None
    bubble_s: float | None
    memory_bytes: Natural | None
    device_memory_bytes: Positive | None
    limits: list[str]
    notes: list[str]


@typed
class NotRanked(TypedDict):
    """A strategy that cannot run."""

    strategy: str
    reason: str


@typed
class Answer(TypedDict):
    """What is recommended in one case."""

    case: Mapping[str, Any]
    """Network, dataset, geometry, batch size and settings."""
    recommended: str | None
    """Null: nothing can be recommended."""
    advice: list[str]
    """Sentences."""
    candidates: list[RankedCandidate]
    """Ranked, the fastest first."""
    not_ranked: list[NotRanked]
    tied: list[str]
    """The first of the ranking, and all that are faster than it with a chance of a quarter or
    more."""
    why_not: dict[str, str]
    """Why a candidate with a higher speed-up than the recommended one is not recommended."""
    recommender: str


@typed
class TrialEntry(TypedDict):
    """One cell that was measured for a choice or search."""

    strategy: str
    cell_id: str
    status: str
    step_s: Positive | None
    """Mean of its steps."""
    device_s: Amount
    """Seconds of the cell times its devices."""


@typed
class ChoiceFile(TypedDict):
    """The content of choice.json and advice.json: answers, their grounds and measurements."""

    schema_version: Literal[1]
    site: str
    answers: list[Answer]
    """One for each case."""
    stopped: str
    """Why no more candidates were measured; empty if none was."""
    trials: list[TrialEntry]
    """Candidates measured for this choice, in order."""
    device_s: Amount
    """Of all trials."""
    device_s_all: Amount | None
    """What measuring every candidate would cost; null: nothing was measured."""


@typed
class TunedConfiguration(TypedDict):
    """One set of options."""

    values: Mapping[str, bool | int | float | str]
    cell_id: str
    basis: Literal["measured", "predicted"]
    samples_per_s: Positive
    """Measured, else predicted and moved by what was measured of others."""
    interval_samples_per_s: Interval
    predicted_samples_per_s: Positive
    predicted_interval_samples_per_s: Interval
    memory_bytes: Natural | None
    """Of the fullest device."""


@typed
class LeftOut(TypedDict):
    """Options that cannot run."""

    values: Mapping[str, bool | int | float | str]
    why: str


@typed
class TuningFile(TypedDict):
    """The content of tuning.json: the search for the options of a strategy, and its cost."""

    schema_version: Literal[1]
    site: str
    case: Mapping[str, Any]
    """Network, dataset, geometry, settings, strategy, and the values of what varies."""
    best: TunedConfiguration | None
    """Null: nothing can run."""
    stopped: str
    """Why no more were measured."""
    trials: list[TrialEntry]
    """Cells of this search, in order."""
    configurations: list[TunedConfiguration]
    """All that may run, the fastest first."""
    left_out: list[LeftOut]
    device_s: Amount
    """Of all trials."""
    device_s_all: Amount | None
    """What an exhaustive sweep would cost; null: nothing was measured."""


@typed
class PredictedCell(TypedDict):
    """What one predictor says of one cell; seconds are of one optimiser step."""

    predictor: str
    """Who says it."""
    cell_id: str
    """The configuration: the cell's path with rep0."""
    strategy: str
    """Strategy."""
    dataset: str
    """Dataset."""
    network: str
    """Network."""
    nodes: Count
    """Nodes."""
    devices_per_node: Count
    """Devices on each node."""
    batch_size: Count
    """Samples of one optimiser step, over all workers."""
    fabric: str
    """Link condition."""
    options: str
    """Strategy options that differ from their defaults, name=value."""
    synchronous: bool
    """Gradients are of the current weights."""
    baseline: bool
    """A trivial rule that a model must beat."""
    status: str
    """Ok, another status of result.json, disturbed or other training (measured, but not to be
    used), or not run."""
    predicted_step_s: Amount | None
    """Null where the predictor cannot speak of the cell; notes say why."""
    predicted_low_s: float | None
    """Lower end of the prediction's own interval."""
    predicted_high_s: float | None
    """95 % by the intervals of its inputs."""
    measured_step_s: Amount | None
    """Median over repeats of the median step."""
    measured_low_s: Amount | None
    """Lower end of the measured interval."""
    measured_high_s: Amount | None
    """Over repeats; of the steps where there is one repeat."""
    repeats: Natural
    """Repeats that it is scored on."""
    repeat_spread: Amount | None
    """(longest - shortest) / median over repeats."""
    profile_runs: NotRequired[Count | None]
    """Jobs that the network's profile is the median of."""
    signed_error: Annotated[float, Ge(-1)] | None
    """(predicted - measured) / measured."""
    compute_s: Amount | None
    """Work on the critical path."""
    communication_s: Amount | None
    """All communication, hidden or not."""
    exposed_communication_s: Amount | None
    """What of it the step waits for."""
    bubble_s: Amount | None
    """Idle time of the schedule."""
    predicted_memory_bytes: Amount | None
    """Of the fullest device; on CPU of the fullest process."""
    measured_memory_bytes: Amount | None
    """The same, measured."""
    measured_wait_s: NotRequired[Amount | None]
    """Of a step, in which the mean rank waits for others; null where the strategy cannot tell."""
    fits: bool | None
    """Null where a device's memory is not known."""
    base_step_s: Amount | None
    """Measured step of the sequential base."""
    limits: str
    """What the model leaves out."""
    notes: str
    """What was extrapolated or stood in; why there is no prediction."""


@typed
class PredictionsFile(TypedDict):
    """The content of predictions.json: every predictor and cell, beside the measurement."""

    schema_version: Literal[1]
    site: str
    experiment: str
    predictions: list[PredictedCell]
