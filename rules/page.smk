# What to train with, then tables and figures in one file, for a reader.
rule page:
    input:
        rules.tables.output,
        figure_files,
        predictions_if_wanted,
    output:
        page=str(PAGE),
        advice=str(TABLES / "advice.json"),
    log:
        str(TABLES / "page.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    message:
        "HTML report of {EXPERIMENT.name} on {SITE.name}"
    script:
        "../workflow/scripts/page.py"
