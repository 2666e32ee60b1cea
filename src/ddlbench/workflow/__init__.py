"""What the Snakefile, its rules and their scripts call."""
