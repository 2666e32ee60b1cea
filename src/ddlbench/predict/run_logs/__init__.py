"""Logs of other people's trainings as rows of one table."""
