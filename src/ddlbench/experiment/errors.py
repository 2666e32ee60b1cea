"""The one exception whose text is written for the user."""


class ConfigError(ValueError):
    """Something the user wrote is wrong: the message says what, where, and what to write."""
