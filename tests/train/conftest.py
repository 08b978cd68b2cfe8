"""What tests of training share."""

from functools import cache

import pytest
from training_runs import write_scenes

from trueshift.train import cli as arguments


@pytest.fixture(scope="session", autouse=True)
def _one_parser():
    """Making a parser takes longer than reading a recipe, and as long as a step or two of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_parser", cache(arguments._parser))
        yield


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes"))
