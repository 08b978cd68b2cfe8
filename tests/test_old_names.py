"""Names from before the rooms: they warn once and give what they are called now."""

import sys
from importlib import import_module

import pytest

from trueshift import _old_paths, create_model, data, eval
from trueshift.models.registry import name_of
from trueshift.utils import deprecation


@pytest.fixture(autouse=True)
def _not_warned_yet(monkeypatch):
    monkeypatch.setattr(deprecation, "_warned", set())


@pytest.mark.parametrize("old", sorted(_old_paths.MOVED))
def test_an_old_path_imports_the_new_module(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    new = _old_paths.MOVED[old]
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use {new}$"):
        module = import_module(old)
    assert module is import_module(new)
    assert module.__name__ == module.__spec__.name == new
    assert import_module(old) is module  # without another warning, which would be an error here


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        import_module("trueshift.ops.never_was")
    with pytest.raises(AttributeError, match="no attribute 'never_was'"):
        _ = eval.never_was


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (data, "Picture", "Sample"),
        (data, "ImageSource", "Source"),
        (data, "TarShards", "DatasetImages"),
        (eval, "Subject", "EvalModel"),
        (eval, "Request", "EvalOptions"),
        (eval, "EvalSettings", "EvalOptions"),
        (eval, "load_subject", "load_eval_model"),
    ],
)
def test_an_old_name_gives_the_new_one_and_warns_once(module, old, new, recwarn):
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use .*{new}"):
        assert getattr(module, old) is getattr(module, new)
    assert getattr(module, old) is getattr(module, new)


def test_modules_that_became_rooms_still_give_their_names():
    from trueshift.eval.audit import run_audit
    from trueshift.eval.metrics import ShiftConsistency
    from trueshift.eval.protocols import find_protocols

    assert (run_audit, ShiftConsistency, find_protocols) == (eval.run_audit, eval.ShiftConsistency, eval.find_protocols)


def test_the_name_of_a_model_is_its_architecture():
    model = create_model("a_swin_mini")
    with pytest.warns(DeprecationWarning, match="use model.architecture$"):
        assert name_of(model) == model.architecture
