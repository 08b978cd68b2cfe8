"""Old names and arguments: they warn once and give what they are called now."""

import sys
import warnings
from importlib import import_module

import pytest
import torch
from unchecked import in_own_process

import trueshift as ts
from trueshift import _old_paths, data, eval
from trueshift.models.registry import name_of
from trueshift.utils import deprecation


@pytest.fixture(autouse=True)
def _not_warned_yet(monkeypatch):
    monkeypatch.setattr(deprecation, "_warned", set())


def test_an_old_path_imports_the_new_module(monkeypatch):
    for old, new in _old_paths.MOVED.items():
        monkeypatch.delitem(sys.modules, old, raising=False)
        with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use {new}$"):
            module = import_module(old)
        assert module is import_module(new)
        assert module.__name__ == module.__spec__.name == new
        assert import_module(old) is module  # without another warning, which would be an error here
    with pytest.raises(ModuleNotFoundError):
        import_module("trueshift.ops.never_was")


# what is used, and what is named instead
OLD = {
    "trueshift.data.Picture": lambda: data.Picture is data.Sample,
    "trueshift.data.TarShards": lambda: data.TarShards is data.DatasetImages,
    "trueshift.eval.Subject": lambda: eval.Subject is eval.EvalModel,
    "trueshift.eval.load_subject": lambda: eval.load_subject is eval.load_eval_model,
    r"create_model\(align=...\)": lambda: ts.create_model("a_swin_mini", align="pixel").config.feature_frame == "pixel",
    r"\(align=...\)": lambda: ts.adapt(ts.create_model("swin_mini"), align="pixel").config.feature_frame == "pixel",
    r"fit\(fit=...\)": lambda: ts.fit(torch.zeros(1, 3, 40, 40), 32, fit="pad").shape == (1, 3, 64, 64),
    r"name_of\(model\)": lambda: name_of(model := ts.create_model("a_swin_mini")) == model.architecture,
}


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_gives_the_new_one_and_warns_once(name):
    with pytest.warns(DeprecationWarning, match=f"{name} is deprecated: use "):
        assert OLD[name]()
    assert OLD[name]()  # without another warning, which would be an error here


def test_modules_that_became_rooms_still_give_their_names():
    from trueshift.eval.audit import run_audit
    from trueshift.eval.metrics import ShiftConsistency
    from trueshift.eval.protocols import find_protocols

    assert (run_audit, ShiftConsistency, find_protocols) == (eval.run_audit, eval.ShiftConsistency, eval.find_protocols)


def test_an_argument_under_both_names_is_refused():
    with pytest.raises(TypeError, match="give method alone"):
        ts.fit(torch.zeros(1, 3, 40, 40), 32, method="pad", fit="pad")


@in_own_process
def test_the_warning_names_the_line_of_the_user():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ts.fit(torch.zeros(1, 3, 40, 40), 32, fit="pad")
        ts.adapt(ts.create_model("swin_mini"), align="pixel")
    assert [warning.filename for warning in caught] == [__file__] * 2


def test_a_folder_with_the_old_name_of_an_argument(tmp_path):
    """Without a warning: its owner can do nothing about it."""
    config = ts.create_model("a_swin_mini", feature_frame="pixel").save_pretrained(tmp_path) / "config.json"
    config.write_text(config.read_text().replace("feature_frame", "align"))
    assert ts.from_pretrained(tmp_path).config.feature_frame == "pixel"
