"""Old names work, and each warns once."""

import warnings

import pytest
import torch

import trueshift as ts
from trueshift.utils import deprecation
from trueshift.utils.deprecation import renamed_arguments


@pytest.fixture(autouse=True)
def _nothing_warned_of_yet(monkeypatch):
    monkeypatch.setattr(deprecation, "_warned", set())


def test_an_argument_is_accepted_under_its_old_name():
    @renamed_arguments(colour="color")
    def paint(color: str = "red") -> str:
        return color

    with pytest.warns(DeprecationWarning, match=r"paint\(colour=\.\.\.\) is deprecated: use color="):
        assert paint(colour="blue") == "blue"
    assert paint(colour="blue") == "blue"
    assert paint("green") == "green"
    with pytest.raises(TypeError, match="give color alone"):
        paint(color="red", colour="red")


OLD_ARGUMENTS = {
    "create_model": lambda: ts.create_model("a_swin_mini", align="pixel").config.feature_frame == "pixel",
    "adapt": lambda: ts.adapt(ts.create_model("swin_mini"), align="pixel").config.feature_frame == "pixel",
    "fit": lambda: ts.fit(torch.zeros(1, 3, 40, 40), 32, fit="pad").shape == (1, 3, 64, 64),
}


@pytest.mark.parametrize("name", OLD_ARGUMENTS)
def test_arguments_that_were_renamed(name):
    with pytest.warns(DeprecationWarning, match="is deprecated: use"):
        assert OLD_ARGUMENTS[name]()


WHERE = """
import sys, warnings
import torch, trueshift as ts
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ts.fit(torch.zeros(1, 3, 40, 40), 32, fit="pad")
    ts.adapt(ts.create_model("swin_mini"), align="pixel")
frame = sys._getframe()
assert [warning.filename for warning in caught] == [frame.f_code.co_filename] * 2, caught
print("ok")
"""


def test_the_warning_names_the_line_of_the_user(run_unchecked):
    assert "ok" in run_unchecked(WHERE)


def test_a_folder_with_the_old_name_of_an_argument(tmp_path):
    """Without a warning: its owner can do nothing about it."""
    config = ts.create_model("a_swin_mini", feature_frame="pixel").save_pretrained(tmp_path) / "config.json"
    config.write_text(config.read_text().replace("feature_frame", "align"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ts.from_pretrained(tmp_path).config.feature_frame == "pixel"
