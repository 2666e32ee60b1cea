"""What SLURM says of jobs, partitions and accounts, read with no default of the user's shell."""
