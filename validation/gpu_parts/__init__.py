"""The five parts of the study on one GPU; ``validation/gpu.py`` runs them."""
