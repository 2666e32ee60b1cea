include: "predict_common.smk"


# What every predictor says of every cell, beside what was measured, and how often it is right.
rule predict:
    input:
        results,
        PROFILES,
        expand(str(LINKS), fabric=FABRICS),
        CONFIG_FILES,
    output:
        predictions=PREDICTIONS,
        tables=expand(
            str(TABLES / "{table}.csv"),
            table=["accuracy", "table_6_1", "table_8_1", "table_8_2"],
        ),
        pages=expand(str(TABLES / "{table}.md"), table=["table_8_1", "table_8_2"]),
    log:
        str(TABLES / "predictions.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    message:
        "predictions for {EXPERIMENT.name} on {SITE.name}"
    script:
        "../workflow/scripts/predict.py"


# One figure of predictions, with the numbers it shows beside it.
rule prediction_figure:
    input:
        rules.predict.output,
        rules.tables.output,
    output:
        png=report(
            str(PREDICTION_FIGURES / "{prediction}.png"),
            caption="../workflow/report/figure.rst",
            category="Predictions",
            labels=figure_labels,
        ),
        pdf=str(PREDICTION_FIGURES / "{prediction}.pdf"),
        csv=str(PREDICTION_FIGURES / "{prediction}.csv"),
    log:
        str(PREDICTION_FIGURES / "{prediction}.log"),
    wildcard_constraints:
        prediction=r"[a-z0-9_]+",
    localrule: True
    conda:
        "../envs/environment.yaml"
    params:
        caption=lambda wildcards: figure_caption(wildcards.prediction),
    message:
        "figure {wildcards.prediction} of {EXPERIMENT.name} on {SITE.name}"
    script:
        "../workflow/scripts/prediction_figure.py"


# Everything that predictions come to.
rule predictions:
    input:
        prediction_files,
    localrule: True
    message:
        "{EXPERIMENT.name} on {SITE.name}: all predictions are there"
