"""Results in the formats of other people's tools: a module a format."""
