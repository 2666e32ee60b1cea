"""What tests of plug-ins need, also where the plug-ins are not installed."""

import os

import plugged


def pytest_configure(config):
    """Make plug-ins known; threads of torch as in tests/conftest.py."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plugged.plug_in(config)
