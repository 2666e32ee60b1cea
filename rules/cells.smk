# One cell: one measurement, one job. Its path says everything that it is. A shell command, as
# Snakemake opens the file of every `script` that it only plans to run: seconds for large matrices.
rule cell:
    input:
        staged=rules.stage.output[0],
    output:
        result=str(result_file(SITE.name, "{cell}")),
    log:
        str(CELL / "supervisor.log"),
    priority: RUN.base_first
    group:
        "cell"
    conda:
        "../envs/environment.yaml"
    threads: RUN.threads(RUN.cell_request)
    resources:
        **resources(RUN.cell_request),
        attempt=lambda w, attempt: attempt,
    params:
        python=sys.executable,
        site=EXPERIMENT.site,
        real_data=RUN.real_data,
    message:
        "measuring {wildcards.cell}"
    shell:
        "{params.python:q} workflow/scripts/run_cell.py {params.site:q} {params.real_data:q} {wildcards.cell:q}"
        " {input.staged:q} {output.result:q} {log:q} {resources.attempt}"


# All cells of the experiment, without the report.
rule cells:
    input:
        RUN.results,
    localrule: True
    message:
        "{TITLE}: every cell has a result"
