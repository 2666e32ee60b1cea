# What every predictor says of every cell, beside what was measured, and how often it is right.
rule predict:
    input:
        RUN.results,
        RUN.profiles,
        expand(str(LINKS), fabric=RUN.fabrics),
        RUN.config_files,
    output:
        predictions=RUN.predictions,
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
        "predictions for {TITLE}"
    script:
        "../workflow/scripts/predict.py"


# One figure of predictions, with the numbers it shows beside it.
rule prediction_figure:
    input:
        rules.predict.output,
        rules.tables.output,
    output:
        png=report(
            str(RUN.prediction_figures / "{prediction}.png"),
            caption="../workflow/report/figure.rst",
            category="Predictions",
            labels=RUN.figure_labels,
        ),
        pdf=str(RUN.prediction_figures / "{prediction}.pdf"),
        csv=str(RUN.prediction_figures / "{prediction}.csv"),
    log:
        str(RUN.prediction_figures / "{prediction}.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    params:
        caption=lambda wildcards: caption_of(wildcards.prediction),
    message:
        "figure {wildcards.prediction} of {TITLE}"
    script:
        "../workflow/scripts/prediction_figure.py"


# Everything that predictions come to.
rule predictions:
    input:
        RUN.prediction_files,
    localrule: True
    message:
        "{TITLE}: all predictions are there"
