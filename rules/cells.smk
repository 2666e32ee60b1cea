# One cell: one measurement, one job. Its path says everything that it is. A shell command, as
# Snakemake opens the file of every `script` that it only plans to run: seconds for large matrices.
rule cell:
    input:
        staged=rules.stage.output[0],
    output:
        result=str(result_file(SITE.name, "{cell}")),
    log:
        str(cell_dir(SITE.name, "{cell}") / "supervisor.log"),
    priority: base_first
    group:
        "cell"
    conda:
        "../envs/environment.yaml"
    threads: cell_threads
    resources:
        nodes=lambda w: cell_request(w).nodes,
        mpi=lambda w: cell_request(w).mpi,
        tasks=lambda w: cell_request(w).tasks,
        tasks_per_node=lambda w: cell_request(w).tasks_per_node,
        tasks_per_gpu=lambda w: cell_request(w).tasks_per_gpu,
        gres=lambda w: cell_request(w).gres,
        mem_mb=lambda w: cell_request(w).mem_mb,
        runtime=lambda w: cell_request(w).runtime_min,
        slurm_account=lambda w: cell_request(w).account,
        slurm_partition=lambda w: cell_request(w).partition,
        qos=lambda w: cell_request(w).qos,
        constraint=lambda w: cell_request(w).constraint,
        slurm_extra=lambda w: cell_request(w).extra,
        attempt=lambda w, attempt: attempt,
    params:
        python=sys.executable,
        site=EXPERIMENT.site,
        real_data=REAL_DATA,
    message:
        "measuring {wildcards.cell}"
    shell:
        "{params.python:q} workflow/scripts/run_cell.py {params.site:q} {params.real_data:q} {wildcards.cell:q}"
        " {input.staged:q} {output.result:q} {log:q} {resources.attempt}"


# All cells of the experiment, without the report.
rule cells:
    input:
        results,
    localrule: True
    message:
        "{EXPERIMENT.name} on {SITE.name}: every cell has a result"
