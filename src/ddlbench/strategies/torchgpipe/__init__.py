"""GPipe and model parallelism as torchgpipe runs them: one process drives all devices of a node."""
