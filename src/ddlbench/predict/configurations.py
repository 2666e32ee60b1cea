"""The configurations of a strategy among which ``ddlbench tune`` searches.

::

    values of each option that varies  -> product -> cells -> cannot run | does not fit | predicted

An option varies if its schema names ``examples`` (values that are worth a try), or if the user
names values for it. ``batch_size`` may vary too, so configurations are compared by seconds a
sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.units import GB
from ddlbench.planning.memory import capacity_bytes, fits, fullest_bytes
from ddlbench.planning.plan import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.belief import Belief, from_prediction
from ddlbench.predict.calibration import calibrated
from ddlbench.predict.prediction import (
    DEFAULT_PREDICTOR,
    History,
    Prediction,
    ask,
    predictor_of,
    steps_measured,
)

if TYPE_CHECKING:
    from ddlbench.experiment.site import Site
    from ddlbench.predict.accuracy import SignedErrors
    from ddlbench.predict.inputs import Inputs
    from ddlbench.predict.recommend import PredictionRequest

Values = Mapping[str, OptionValue]

BATCH_SIZE = "batch_size"
# Correlation of the errors of two predictions that differ in one option; an assumption.
_ONE_OPTION = 0.85
_MOST = 2000


@dataclass(frozen=True)
class Configuration:
    """One cell to choose from.

    Args:
        cell: with this configuration's options.
        values: of everything that varies, defaults included.
        prediction: None if it cannot run or has no prediction.
        expected: seconds a sample by the prediction; None as above.
        memory_bytes: of the fullest device; None if unknown.
        why: why it is left out; empty if it is not.
    """

    cell: Cell
    values: Values
    prediction: Prediction | None = None
    expected: Belief | None = None
    memory_bytes: int | None = None
    why: str = ""

    @property
    def label(self) -> str:
        """``chunks=8 balance=work``."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.values.items())

    def runs(self, history: History) -> tuple[float, ...]:
        """Seconds a sample of each of its runs at the site."""
        steps_s = steps_measured(history, self.cell)
        return tuple(step_s / self.cell.batch_size for step_s in steps_s)


def varied(
    strategy: str, named: Mapping[str, Sequence[OptionValue]], fixed: Mapping[str, Any]
) -> dict[str, tuple[OptionValue, ...]]:
    """Name -> values: those the user named, else every option with examples that is not fixed.

    Raises:
        ConfigError: the strategy has no such option, or there is nothing to vary.
    """
    options = strategy_of(strategy).options
    for name in named:
        if name != BATCH_SIZE and name not in options:
            remark = nearest(name, [BATCH_SIZE, *options])
            raise ConfigError(f"--vary {name}: {strategy} has no such option; {remark}")
        if name in fixed:
            raise ConfigError(f"--vary {name} and --option {strategy}.{name} exclude each other")
    if named:
        return {name: tuple(dict.fromkeys(values)) for name, values in named.items()}
    found = {
        name: tuple(dict.fromkeys((schema["default"], *schema["examples"])))
        for name, schema in options.items()
        if "examples" in schema and name not in fixed
    }
    if not found:
        raise ConfigError(
            f"{strategy} has no option that is worth tuning; name one with --vary, as "
            f"{BATCH_SIZE}=16,32,64"
        )
    return found


def configurations(
    request: PredictionRequest,
    strategy: str,
    values: Mapping[str, Sequence[OptionValue]],
    site: Site,
    inputs: Inputs,
    *,
    errors: SignedErrors,
    device_memory_bytes: float | None = None,
) -> list[Configuration]:
    """Every configuration, predicted; what cannot run or does not fit says why.

    Args:
        request: network, dataset, devices, and the options that do not vary.
        strategy: its name.
        values: of what varies.
        site: the machine.
        inputs: its profiles and links.
        errors: of the site's predictions, see :func:`ddlbench.predict.accuracy.errors_at`.
        device_memory_bytes: limit of one device; by default its memory.

    Raises:
        ConfigError: a value is wrong, there are too many, or a profile or links are missing.
    """
    count = int(np.prod([len(choices) for choices in values.values()]))
    if count > _MOST:
        raise ConfigError(
            f"{count} configurations are more than {_MOST}; vary fewer options (--vary)"
        )
    found: dict[str, Configuration] = {}
    for chosen in itertools.product(*values.values()):
        one = dict(zip(values, chosen, strict=True))
        cell = _cell(request, strategy, one)
        found.setdefault(cell.id, Configuration(cell, one))
    inputs.workload(next(iter(found.values())).cell)  # one error names all that is missing
    return [_predicted(one, site, inputs, errors, device_memory_bytes) for one in found.values()]


def _cell(request: PredictionRequest, strategy: str, values: Values) -> Cell:
    options = {**request.options.get(strategy, {}), **values}
    batch_size = options.pop(BATCH_SIZE, request.batch_size)
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ConfigError(f"{BATCH_SIZE} {batch_size!r}: write whole numbers from 1 on")
    asked = {**request.options, strategy: options}
    return replace(request, batch_size=batch_size, options=asked).cell(strategy)


def _predicted(
    one: Configuration,
    site: Site,
    inputs: Inputs,
    errors: SignedErrors,
    device_memory_bytes: float | None,
) -> Configuration:
    cell = one.cell
    reason = strategy_of(cell.strategy).supports(cell) or site.supports(cell)
    if reason is not None:
        return replace(one, why=f"cannot run: {reason}")
    workload = inputs.workload(cell)
    try:
        plan = make_plan(cell, inputs.site)
        prediction = ask(predictor_of(DEFAULT_PREDICTOR), workload, inputs.links(cell), plan)
    except ConfigError as error:
        return replace(one, why=f"no prediction: {error}")
    prediction = calibrated(prediction, cell.strategy, inputs.calibration)
    constants = inputs.calibration.of(cell.strategy) if inputs.calibration else None
    expected = from_prediction(
        prediction.step_s / cell.batch_size,
        constants.ratio if constants else None,
        errors.get((prediction.predictor, cell.strategy), ()),
    )
    devices = prediction.memory_bytes
    needed = fullest_bytes(workload, plan, devices) if devices else None
    capacity = device_memory_bytes or capacity_bytes(workload, site)
    why = ""
    if needed is not None and capacity is not None and not fits(workload, plan, devices, capacity):
        why = f"does not fit: {GB.text(needed)} needed, a device has {GB.text(capacity)}"
    return replace(one, prediction=prediction, expected=expected, memory_bytes=needed, why=why)


def alike(found: Sequence[Configuration]) -> np.ndarray:
    """Correlation of the errors of their predictions, by how many options differ."""
    names = list(found[0].values) if found else []
    columns = [np.array([str(one.values[name]) for one in found]) for name in names]
    differing = sum(
        ((column[:, None] != column[None, :]).astype(float) for column in columns),
        start=np.zeros((len(found), len(found))),
    )
    matrix: np.ndarray = _ONE_OPTION**differing
    return matrix


def _text(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
