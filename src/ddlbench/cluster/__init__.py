"""The first hour on a new cluster: query SLURM, write a site file, and check that cells can run."""
