# The cell's dataset on the node-local storage of each of its nodes. Its report carries the cell's
# name, so that it runs in the same job as the cell it serves and never joins two cells.
rule stage:
    input:
        RUN.checked,
        # What the plan is made from, before the data: a profile uses the same scratch. Measured again
        # it repeats no cell that is done, as that is shown as stale.
        measured=ancient(RUN.measured_inputs),
    output:
        temp(str(CELL / "staged.json")),
    log:
        str(CELL / "stage.log"),
    priority: RUN.base_first
    group:
        "cell"
    conda:
        "../envs/environment.yaml"
    threads: RUN.threads(RUN.stage_request)
    resources:
        **resources(RUN.stage_request),
        attempt=lambda w, attempt: attempt,
    params:
        python=sys.executable,
        site=EXPERIMENT.site,
        real_data=RUN.real_data,
    message:
        "data for {wildcards.cell}"
    shell:
        "{params.python:q} workflow/scripts/stage.py {params.site:q} {params.real_data:q} {wildcards.cell:q}"
        " {output:q} {log:q} {resources.attempt}"
