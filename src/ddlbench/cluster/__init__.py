"""A stranger's first hour on a cluster: ask it what it is, and check that cells can run there."""
