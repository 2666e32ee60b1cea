include: "profiling_common.smk"


# Times and bytes of one network's layers on one device, and how replicas on a node slow each other.
rule profile:
    output:
        str(profile_file(SITE.name, "{measured}")),
    log:
        str(profile_file(SITE.name, "{measured}").with_name("profile.log")),
    conda:
        "../envs/environment.yaml"
    threads: profile_threads
    resources:
        nodes=lambda w: profile_resources(w).nodes,
        mpi=lambda w: profile_resources(w).mpi,
        tasks=lambda w: profile_resources(w).tasks,
        tasks_per_node=lambda w: profile_resources(w).tasks_per_node,
        tasks_per_gpu=lambda w: profile_resources(w).tasks_per_gpu,
        gres=lambda w: profile_resources(w).gres,
        mem_mb=lambda w: profile_resources(w).mem_mb,
        runtime=lambda w: (
            profile_resources(w).runtime_min + profile_resources(w).stage_runtime_min
        ),
        slurm_account=lambda w: profile_resources(w).account,
        slurm_partition=lambda w: profile_resources(w).partition,
        qos=lambda w: profile_resources(w).qos,
        constraint=lambda w: profile_resources(w).constraint,
        slurm_extra=lambda w: profile_resources(w).extra,
    params:
        python=sys.executable,
        site=EXPERIMENT.site,
        real_data=REAL_DATA,
        needs=lambda w: json.dumps(profile_needs(w).to_dict()),
    message:
        "profiling {wildcards.measured}"
    shell:
        "{params.python:q} -P workflow/scripts/profile_network.py {params.site:q} {params.real_data:q}"
        " {params.needs:q}"
        " {output:q} {log:q}"


if PROFILE_RUNS > 1:

    ruleorder: pooled_profile > profile

    # The medians of several runs, each of which was a job.
    rule pooled_profile:
        input:
            profile_runs,
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
        PROFILES,
    localrule: True
    message:
        "{EXPERIMENT.name} on {SITE.name}: every network has a profile"
