"""What tests of recipes share."""

from functools import cache

import pytest

from trueshift.train import arguments


@pytest.fixture(scope="module")
def one_parser():
    """Making a parser takes longer than reading a recipe."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_parser", cache(arguments._parser))
        yield
