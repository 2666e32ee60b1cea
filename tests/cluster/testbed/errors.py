"""The one exception whose text is written for the user."""


class TestBedError(Exception):
    """Something stands in the way of the test bed: the sentence says what, and what to do."""

    __test__ = False
