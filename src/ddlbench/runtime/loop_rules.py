"""The rules of the timed loop, in the words that every result carries."""

__all__ = ["BARRIER_RULE", "CLOCKS", "COMBINED_RULE", "WARMUP_RULE"]

CLOCKS = {
    "cpu": "time.perf_counter of each host after every step",
    "cuda": "CUDA events on every device after each step, read once the devices were idle",
}
WARMUP_RULE = "the first warmup_steps steps of the run are trained and dropped"
BARRIER_RULE = "all ranks wait for each other once, between warm-up and the first epoch"
COMBINED_RULE = "a step is as long as its slowest rank, an epoch as the slowest rank's steps"
