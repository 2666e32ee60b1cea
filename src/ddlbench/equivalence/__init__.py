"""Whether a strategy trains a network as one device does: ``ddlbench check``, and tests."""
