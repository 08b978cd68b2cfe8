"""What is said of an error in one line."""

import pytest

from trueshift.utils.checks import first_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no\nTraceback"), "no"),
        (ValueError("\n  no  \n"), "no"),
        (KeyError(), "KeyError"),
        (ValueError(" \n"), "ValueError"),
        (ValueError("a" * 300), "a" * 200),
    ],
)
def test_an_error_in_one_line(error, said):
    assert first_line(error) == said
