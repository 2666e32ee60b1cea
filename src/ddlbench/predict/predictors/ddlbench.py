"""The predictor ``ddlbench``: one answer for every strategy, from what the site measured.

What a step consists of says the strategy's descriptor:

* computations and messages of a rank (:mod:`ddlbench.planning.step`): they are replayed with all
  measured terms (:mod:`ddlbench.predict.step_replay`, :mod:`ddlbench.predict.step_replay`);
* stages: the schedule is replayed (:mod:`ddlbench.predict.predictors.pipeline_replay`), with block
  times whose sum is that of whole steps;
* anything else: the model that the descriptor prefers on such devices; where that hides nothing and
  has a counterpart that hides all it can, as much is hidden as the site's overlap allows.
"""

from __future__ import annotations

from dataclasses import replace

from ddlbench.predict.prediction import (
    DEFAULT_PREDICTOR,
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    Predictor,
    predictor_of,
)
from ddlbench.predict.predictors.pipeline_replay import replayed
from ddlbench.predict.predictors.steps import predicted


class Ddlbench(BuiltInPredictor):
    """What the site measured, put together as the strategy's descriptor says."""

    name = DEFAULT_PREDICTOR
    source = "replay of what the strategy does, with measured parts"
    strategies = None

    def model(self, inputs: CellInputs) -> Prediction:
        strategy = inputs.strategy
        if strategy.pipeline_run(inputs.plan) is not None:
            return replayed(inputs, level=True)
        kind = inputs.workload.compute_kind
        preferred = strategy.preferred_on(kind)
        try:
            step = inputs.step
        except NotPredictable as error:
            if preferred in (None, DEFAULT_PREDICTOR):
                raise NotPredictable(
                    f"{DEFAULT_PREDICTOR} has no model of {strategy.name} on {kind} devices: "
                    f"its descriptor prefers no predictor there, and {error}"
                ) from None
        else:
            if not step.has_servers:
                return predicted(inputs, step)
        return replace(_preferred(inputs, str(preferred)), predictor=DEFAULT_PREDICTOR)


def _preferred(inputs: CellInputs, name: str) -> Prediction:
    """What a model predicts; where it hides nothing, with as much hidden as the links allow.

    ::

        exposed = all hidden + (1 - hidden share) * handled share * (nothing hidden - all hidden)
    """

    def prediction_of(model: Predictor) -> Prediction:
        return model.predict(
            inputs.workload, inputs.measured_links, inputs.plan, inputs.cell, inputs.history
        )

    model = predictor_of(name)
    prediction = prediction_of(model)
    if not isinstance(model, BuiltInPredictor) or model.overlapped is None:
        return prediction
    cell = inputs.cell
    exposed = inputs.links.contention(cell.nodes, cell.devices_per_node, None).exposed_share
    hidden = prediction_of(predictor_of(model.overlapped))
    longer_s = prediction.exposed_communication_s - hidden.exposed_communication_s
    longer_s *= model.handled_share(inputs)
    exposed_s = hidden.exposed_communication_s + exposed * max(0.0, longer_s)
    return replace(
        prediction,
        exposed_communication_s=min(exposed_s, prediction.communication_s),
        interval_s=None,
    )
