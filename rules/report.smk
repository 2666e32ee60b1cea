# Tidy tables: one row a cell (also those that could not run), one a configuration, one a step.
# What cannot run has no result, so the configuration is an input of its own.
rule tables:
    input:
        RUN.results,
        RUN.config_files,
    output:
        measurements=report(
            str(TABLES / "measurements.csv"),
            caption="../workflow/report/measurements.rst",
            category="Tables",
        ),
        summary=str(TABLES / "summary.csv"),
        steps=str(TABLES / "steps.csv"),
        validation=str(TABLES / "validation.csv"),
    log:
        str(TABLES / "tables.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    message:
        "tables of {TITLE}"
    script:
        "../workflow/scripts/tables.py"


# One figure, with the numbers it shows beside it.
rule figure:
    input:
        rules.tables.output,
    output:
        png=report(
            str(FIGURES / "{figure}.png"),
            caption="../workflow/report/figure.rst",
            category="Figures",
            labels=RUN.figure_labels,
        ),
        pdf=str(FIGURES / "{figure}.pdf"),
        csv=str(FIGURES / "{figure}.csv"),
    log:
        str(FIGURES / "{figure}.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    params:
        site=SITE.description,
        caption=lambda wildcards: caption_of(wildcards.figure),
    message:
        "figure {wildcards.figure} of {TITLE}"
    script:
        "../workflow/scripts/figure.py"


# Tables and figures of the cells that are there, however many are missing.
rule partial:
    input:
        RUN.existing_results,
    log:
        str(TABLES / "partial.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    message:
        "{TITLE}: report of the cells that are there"
    script:
        "../workflow/scripts/partial.py"
