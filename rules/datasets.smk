# The cell's dataset on the node-local storage of each of its nodes. Its report carries the cell's
# name, so that it runs in the same job as the cell it serves and never joins two cells.
rule stage:
    input:
        checked,
        # What the plan is made from, before the data: a profile uses the same scratch. Measured again
        # it repeats no cell that is done, as that is shown as stale.
        measured=ancient(measured_inputs),
    output:
        temp(str(cell_dir(SITE.name, "{cell}") / "staged.json")),
    log:
        str(cell_dir(SITE.name, "{cell}") / "stage.log"),
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
        runtime=lambda w: cell_request(w).stage_runtime_min,
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
        "data for {wildcards.cell}"
    shell:
        "{params.python:q} workflow/scripts/stage.py {params.site:q} {params.real_data:q} {wildcards.cell:q}"
        " {output:q} {log:q} {resources.attempt}"
