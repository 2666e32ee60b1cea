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
    conda:
        "../envs/environment.yaml"
    threads: RUN.threads()
    resources:
        **RUN.resources(RUN.links_request),
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
        expand(str(LINKS), fabric=RUN.fabrics),
    localrule: True
    message:
        "links of {SITE.name} are there"
