"""The exception with messages for the user."""


class ConfigError(ValueError):
    """Wrong user input. The message says what is wrong, where, and what to write instead."""
