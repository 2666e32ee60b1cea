"""Which predictions and figures of them belong to this experiment. No rules here."""

from ddlbench.experiment.paths import prediction_figures_dir, predictions_file

PREDICTIONS = str(predictions_file(SITE.name, EXPERIMENT.name))
PREDICTION_FIGURES = prediction_figures_dir(SITE.name, EXPERIMENT.name)


def prediction_files(wildcards):
    """Predictions, and the figures of them that suit this matrix."""
    # Here, because a job that measures a cell reads this file too and predicts nothing.
    from ddlbench.report.registry import prediction_figures_for

    names = prediction_figures_for(ROWS)
    return [PREDICTIONS, *(str(PREDICTION_FIGURES / f"{name}.png") for name in names)]


def predictions_if_wanted(wildcards):
    """Part of what is made unasked where the experiment says `predict: true`."""
    return prediction_files(wildcards) if EXPERIMENT.predict else []
