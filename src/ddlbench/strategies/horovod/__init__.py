"""Real Horovod, started by our own processes."""
