"""What the profiles of this experiment need. No rules here."""

import json

from ddlbench.experiment.paths import profile_file, profile_id_of, profile_run_file
from ddlbench.planning.profiles import needs_of, profiles_of

PROFILE_RUNS = EXPERIMENT.profile["runs"]
PROFILES = [str(profile_file(SITE.name, key.id)) for key in profiles_of(ROWS)]


wildcard_constraints:
    profile=r"[^./][^/]*/[^/]+/[^/]+",
    measured=r"[^./][^/]*/[^/]+/[^/]+(/run-[1-9][0-9]*)?",


def profile_needs(wildcards):
    """Batch sizes and settings of a profile; a wrong path ends here, before any job runs."""
    try:
        return needs_of(
            profile_id_of(wildcards.measured), ROWS, EXPERIMENT.profile, SITE
        )
    except ConfigError as error:
        sys.exit(f"ddlbench: {error}")


def profile_resources(wildcards):
    """All devices of one node: replicas share it without talking."""
    profile_needs(wildcards)  # a wrong path is one sentence
    return request(1, SITE.devices_per_node, SITE)


def profile_threads(wildcards):
    """All cores of this machine, as for a cell; on a cluster, what one task needs."""
    if SITE.launcher == "local":
        return workflow.cores or 1
    return profile_resources(wildcards).cpus_per_task


def profile_runs(wildcards):
    """The runs that a profile pools."""
    runs = range(1, PROFILE_RUNS + 1)
    return [profile_run_file(SITE.name, wildcards.profile, run) for run in runs]
