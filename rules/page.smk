# What to train with, then tables and figures in one file, for a reader.
rule page:
    input:
        rules.tables.output,
        RUN.figure_files,
        RUN.predictions_if_wanted,
    output:
        page=str(RUN.page),
        advice=str(TABLES / "advice.json"),
    log:
        str(TABLES / "page.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    message:
        "HTML report of {TITLE}"
    script:
        "../workflow/scripts/page.py"
