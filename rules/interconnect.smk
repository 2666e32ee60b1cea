from ddlbench.experiment.paths import links_file
from ddlbench.interconnect.worlds import links_request

LINKS = links_file(SITE.name, "{fabric}")
FABRICS = sorted({cell.fabric for cell in CELLS.values()})


# How fast the devices of the site talk to each other under one link condition. A shell command, as
# in rule cell.
rule links_of_fabric:
    output:
        links=str(LINKS),
        pairs=report(
            str(LINKS.with_name("links.png")),
            caption="../workflow/report/links.rst",
            category="Links",
            labels={"figure": "pairs", "fabric": "{fabric}"},
        ),
        sweeps=report(
            str(LINKS.with_name("sweeps.png")),
            caption="../workflow/report/links.rst",
            category="Links",
            labels={"figure": "sweeps", "fabric": "{fabric}"},
        ),
        others=expand(
            str(LINKS.with_name("{name}")),
            name=["links.pdf", "links.csv", "sweeps.pdf", "sweeps.csv"],
            allow_missing=True,
        ),
    log:
        str(LINKS.with_name("links.log")),
    wildcard_constraints:
        fabric=r"[A-Za-z0-9_.-]+",
    conda:
        "../envs/environment.yaml"
    threads:
        lambda w: (
            (workflow.cores or 1)
            if SITE.launcher == "local"
            else links_request(SITE, w.fabric).cpus_per_task
        )
    resources:
        nodes=lambda w: links_request(SITE, w.fabric).nodes,
        mpi=lambda w: links_request(SITE, w.fabric).mpi,
        tasks=lambda w: links_request(SITE, w.fabric).tasks,
        tasks_per_node=lambda w: links_request(SITE, w.fabric).tasks_per_node,
        tasks_per_gpu=lambda w: links_request(SITE, w.fabric).tasks_per_gpu,
        gres=lambda w: links_request(SITE, w.fabric).gres,
        mem_mb=lambda w: links_request(SITE, w.fabric).mem_mb,
        runtime=lambda w: links_request(SITE, w.fabric).runtime_min,
        slurm_account=lambda w: links_request(SITE, w.fabric).account,
        slurm_partition=lambda w: links_request(SITE, w.fabric).partition,
        qos=lambda w: links_request(SITE, w.fabric).qos,
        constraint=lambda w: links_request(SITE, w.fabric).constraint,
        slurm_extra=lambda w: links_request(SITE, w.fabric).extra,
    params:
        python=sys.executable,
        site=EXPERIMENT.site,
    message:
        "links of {SITE.name}, fabric {wildcards.fabric}"
    shell:
        "{params.python:q} workflow/scripts/links.py {params.site:q} {wildcards.fabric:q}"
        " {output.links:q} {log:q}"


# The links of every fabric of this experiment.
rule links:
    input:
        expand(str(LINKS), fabric=FABRICS),
    localrule: True
    message:
        "links of {SITE.name} are there"
