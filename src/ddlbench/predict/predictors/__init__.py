"""One module a predictor; their names stand in ``ddlbench.experiment.registry.PREDICTORS``."""
