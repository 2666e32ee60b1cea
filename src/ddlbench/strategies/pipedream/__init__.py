"""PipeDream's runtime: one process a device carries out its list of a schedule's actions."""
