"""Tables and figures of results; needs no torch."""
