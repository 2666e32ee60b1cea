"""What all tests share."""

from hypothesis import settings

# A shared machine may take its time: no test asserts on the wall clock.
settings.register_profile("ddlbench", deadline=None)
settings.load_profile("ddlbench")
