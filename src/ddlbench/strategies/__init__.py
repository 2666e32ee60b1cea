"""How each strategy runs: one executor a module, named by its descriptor in planning."""
