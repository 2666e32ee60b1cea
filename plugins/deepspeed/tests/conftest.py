"""What tests of plug-ins share, also where the plug-ins are not installed."""

from plugged import pytest_configure  # noqa: F401
