"""Every figure but timelines: one file a figure or a family, named in the registry."""
