# Tables and figures in one file, for a reader.
rule page:
    input:
        rules.tables.output,
        figure_files,
        predictions_if_wanted,
    output:
        str(PAGE),
    log:
        str(TABLES / "page.log"),
    localrule: True
    conda:
        "../envs/environment.yaml"
    message:
        "HTML report of {EXPERIMENT.name} on {SITE.name}"
    script:
        "../workflow/scripts/page.py"
