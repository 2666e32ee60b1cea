# One cell: its data on its nodes, then one measurement, in one job. Its path says everything that it
# is. A shell command, as Snakemake opens the file of every `script` that it only plans to run. One
# rule, one output, one log and few functions a cell: each costs milliseconds, times all cells.
rule cell:
    input:
        # What the plan is made from, before the data: a profile uses the same scratch. Measured again
        # it repeats no cell that is done, as that is shown as stale.
        ancient(RUN.measured_inputs),
    output:
        str(result_file(SITE.name, "{cell}")),
    log:
        str(CELL / "supervisor.log"),
    priority: RUN.base_first
    conda:
        "../envs/environment.yaml"
    threads: RUN.threads()
    resources:
        **RUN.resources(RUN.cell_request),
        attempt=lambda w, attempt: attempt,
    params:
        program=RUN.program("run_cell.py"),
    shell:
        "{params.program} {wildcards.cell:q} {output:q} {log:q} {resources.attempt}"


# All cells of the experiment, without the report.
rule cells:
    input:
        RUN.results,
    localrule: True
    message:
        "{TITLE}: every cell has a result"
