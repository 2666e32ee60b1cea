# Datasets on the node-local storage of the nodes of a job, without measuring: `snakemake datasets`.
# A cell makes in its job what its nodes lack, as no scheduler promises it the nodes of another job.
rule dataset:
    output:
        str(DATASET),
    log:
        str(DATASET.with_name("stage.log")),
    conda:
        "../envs/environment.yaml"
    threads: RUN.threads()
    resources:
        **RUN.resources(RUN.cell_request),
        attempt=lambda w, attempt: attempt,
    params:
        program=RUN.program("stage.py"),
    message:
        "making the data of {wildcards.cell} on its nodes"
    shell:
        "{params.program} {wildcards.cell:q} {output:q} {log:q} {resources.attempt}"


# All datasets of the experiment, each on as many nodes as its largest cell has.
rule datasets:
    input:
        RUN.datasets,
    localrule: True
    message:
        "{TITLE}: every dataset is made"
