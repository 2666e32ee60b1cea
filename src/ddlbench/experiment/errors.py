"""The one exception whose text is written for the user."""

__all__ = ["ConfigError"]


class ConfigError(ValueError):
    """Something the user wrote is wrong: the message says what, where, and what to write."""
