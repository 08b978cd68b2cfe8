"""The examples in docstrings run, and every public name has one."""

import pytest

import trueshift

# in a process of their own: doctest cannot look through the shape checks
PROGRAM = """
import doctest, importlib, pathlib, torch, trueshift
root = pathlib.Path(trueshift.__file__).parent
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
examples = 0
for file in sorted(root.rglob("*.py")):
    if ">>>" in file.read_text():
        torch.manual_seed(0)
        name = ".".join(("trueshift", *file.relative_to(root).with_suffix("").parts))
        given = {"torch": torch, "trueshift": trueshift}
        failed, attempted = doctest.testmod(importlib.import_module(name), extraglobs=given, optionflags=flags)
        assert not failed, name
        examples += attempted
print(examples, "examples")
"""


def test_examples_run(run_unchecked):
    assert int(run_unchecked(PROGRAM).split()[-2]) >= 60


@pytest.mark.parametrize("name", trueshift.__all__)
def test_every_public_name_has_an_example(name):
    assert ">>>" in getattr(trueshift, name).__doc__
