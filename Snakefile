"""ddlbench: measure, predict and choose how to parallelise DNN training.

    config -> datasets -> cell -> tables -> figures
           -> links, profiles -> predictions

Run `snakemake --profile profiles/local` here, `snakemake --profile profiles/slurm` on a cluster.
"""

from snakemake.utils import min_version

min_version("9.20")

if "experiment" not in config:

    configfile: "config/config.yaml"


include: "rules/common.smk"
include: "rules/datasets.smk"
include: "rules/interconnect.smk"
include: "rules/profiling.smk"
include: "rules/cells.smk"
include: "rules/report.smk"
include: "rules/predict.smk"
include: "rules/page.smk"


report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        RUN.lost_results,
        rules.tables.output,
        RUN.figure_files,
        RUN.predictions_if_wanted,
        rules.page.output,
    localrule: True
    message:
        "{TITLE}: all tables and figures are there"


onstart:
    RUN.ready_to_measure()


onerror:
    # Some cells failed, or the run was stopped: the tables and figures of all others are made all the same.
    RUN.report_what_is_there()
