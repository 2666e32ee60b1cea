"""The predictors; their names are in ``ddlbench.experiment.registry.PREDICTORS``."""
