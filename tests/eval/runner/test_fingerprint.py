"""Answers of an earlier run count only where the same model gave them."""

import importlib
import sys
from dataclasses import replace

import pytest
import torch
from known_models import TINY, ReadsOnePixel, save_onnx, subject

import trueshift
from trueshift.data import EmbeddedSample
from trueshift.eval import EvalModel, EvalOptions, find_protocols, load_eval_model, run_evaluation

SETTINGS = EvalOptions(limit=8, batch_size=16, workers=1)


def evaluated(model, output, settings=SETTINGS):
    return run_evaluation(model, EmbeddedSample(), find_protocols(["circular"]), settings, output)["measured"]


@pytest.mark.parametrize("external", [None, "model.onnx.data"])
def test_another_onnx_file_of_the_same_name_is_another_model(tmp_path, external):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path, output, looks = tmp_path / "model.onnx", tmp_path / "out", torch.rand(3 * 32 * 32, 2)
    save_onnx(path, looks, external=external)
    first = evaluated(load_eval_model(str(path)), output)
    assert evaluated(load_eval_model(str(path)), output) == first
    if external:
        (tmp_path / external).unlink()
    save_onnx(path, looks + 1, external=external)
    with pytest.raises(ValueError, match=r"weights was \w+, is \w+\): needs another --output"):
        evaluated(load_eval_model(str(path)), output)


@pytest.mark.parametrize("change", [{"criterion": {"align": "fixed"}}, {"anchor": True}])
def test_another_configuration_with_the_same_weights_is_another_model(tmp_path, change):
    first, again, other = (
        trueshift.create_model("a_swin_mini", **{"anchor": False, **options}) for options in ({}, {}, change)
    )
    for network in (again, other):
        network.load_state_dict(first.state_dict())
    measured = evaluated(subject(first), tmp_path)
    assert evaluated(subject(again), tmp_path) == measured
    with pytest.raises(ValueError, match=r"\(network was \w+, is \w+\): needs another --output"):
        evaluated(subject(other), tmp_path)


CODE = """
import torch
class Pixel(torch.nn.Module):
    num_classes = 2
    def forward(self, images):
        value = images[:, :, {row}, 0].sum(1)
        return torch.stack([-value, value], 1)
"""


def test_another_forward_is_another_model(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def answers(row):
        (tmp_path / "by_row.py").write_text(CODE.format(row=row))
        sys.modules.pop("by_row", None)
        importlib.invalidate_caches()
        return evaluated(subject(importlib.import_module("by_row").Pixel()), tmp_path / "out")

    assert answers(0) == answers(0)
    with pytest.raises(ValueError, match=r"\(code was \w+, is \w+\): needs another --output"):
        answers(9)


class Moved(ReadsOnePixel):
    """Keeps what it does in other places than weights."""

    def __init__(self, row):
        super().__init__()
        self.register_buffer("row", torch.tensor(row), persistent=False)
        self.rows = torch.tensor([row])
        self.steps = range(row)
        self.names = {str(row)}
        self.kind = torch.float64 if row else torch.float32


@pytest.mark.parametrize("kept", ["row", "rows", "steps", "names", "kind"])
def test_what_stands_beside_the_weights_is_of_the_model_too(tmp_path, kept):
    first = subject(Moved(0))
    evaluated(first, tmp_path)
    evaluated(subject(Moved(0)), tmp_path)
    setattr(first.module, kept, getattr(Moved(9), kept))
    with pytest.raises(ValueError, match="needs another --output"):
        evaluated(first, tmp_path)


def test_answers_of_another_device_are_not_mixed(tmp_path, monkeypatch):
    """Kernels round by it: what eval.json says of it is to hold for all answers."""
    evaluated(subject(ReadsOnePixel()), tmp_path)
    evaluated(subject(ReadsOnePixel()), tmp_path, replace(SETTINGS, workers=2))
    monkeypatch.setattr("trueshift.eval.runner.evaluate.device_name", lambda device: "NVIDIA H200")
    with pytest.raises(ValueError, match=r"\(device was .*, is NVIDIA H200\): needs another --output"):
        evaluated(subject(ReadsOnePixel()), tmp_path)


def test_a_question_that_nothing_was_answered_to_may_be_asked_otherwise(tmp_path):
    """As after a batch that did not fit into memory."""

    class TooLarge(ReadsOnePixel):
        def forward(self, images):
            if len(images) > 8:
                raise MemoryError
            return super().forward(images)

    with pytest.raises(MemoryError):
        evaluated(subject(TooLarge()), tmp_path)
    smaller = replace(SETTINGS, batch_size=8)
    measured = evaluated(subject(TooLarge()), tmp_path, smaller)
    assert evaluated(subject(TooLarge()), tmp_path, smaller) == measured
    with pytest.raises(ValueError, match="batch_size was 8, is 16"):
        evaluated(subject(TooLarge()), tmp_path)


def test_a_function_never_resumes(tmp_path):
    function = EvalModel("mine:make", lambda images: ReadsOnePixel()(images), TINY, "made up", num_classes=2)
    evaluated(function, tmp_path)
    with pytest.raises(ValueError, match=r"holds answers, and mine:make is a function.*needs another --output"):
        evaluated(function, tmp_path)
