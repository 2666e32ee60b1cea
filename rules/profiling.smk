# Times and bytes of one network's layers on one device, and how replicas on a node slow each other.
rule profile:
    output:
        str(profile_file(SITE.name, "{measured}")),
    log:
        str(profile_file(SITE.name, "{measured}").with_name("profile.log")),
    conda:
        "../envs/environment.yaml"
    threads: RUN.threads()
    resources:
        **RUN.resources(RUN.profile_request),
    params:
        python=sys.executable,
        site=EXPERIMENT.site,
        real_data=RUN.real_data,
        needs=RUN.profile_needs,
    message:
        "profiling {wildcards.measured}"
    shell:
        "{params.python:q} -P workflow/scripts/profile_network.py {params.site:q} {params.real_data:q}"
        " {params.needs:q}"
        " {output:q} {log:q}"


if EXPERIMENT.profile.runs > 1:

    ruleorder: pooled_profile > profile

    # The medians of several runs, each of which was a job.
    rule pooled_profile:
        input:
            RUN.profile_runs,
        output:
            str(profile_file(SITE.name, "{profile}")),
        log:
            str(profile_file(SITE.name, "{profile}").with_name("pool.log")),
        localrule: True
        conda:
            "../envs/environment.yaml"
        params:
            python=sys.executable,
        message:
            "pooling the runs of profile {wildcards.profile}"
        shell:
            "{params.python:q} -P workflow/scripts/pool_profiles.py {output:q} {log:q} {input:q}"


# All profiles of the experiment.
rule profiles:
    input:
        RUN.profiles,
    localrule: True
    message:
        "{TITLE}: every network has a profile"
