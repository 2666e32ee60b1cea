"""ZeRO data parallelism by DeepSpeed."""
