"""torchvision's CUDA wheel beside a CPU-only torch: solved once, and not where it works."""

import subprocess
import sys
from pathlib import Path

import torch

from trueshift import _torchvision

ROOT = Path(__file__).parents[1]


def test_timm_and_torchvision_import_after_us():
    # in a process that has not imported any of them
    program = "import trueshift, torchvision, timm; print(timm.is_model('a_swin_tiny'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-6000:]


def test_operators_are_defined_only_where_the_library_does_not_load(monkeypatch):
    made = []
    monkeypatch.setattr(_torchvision, "_definitions", [])
    monkeypatch.setattr(torch.library, "Library", lambda *a: made.append(a) or _Recorder())
    monkeypatch.setattr(_torchvision, "_library_loads", lambda package: True)
    assert _torchvision.make_importable() is False
    assert not made
    monkeypatch.setattr(_torchvision, "_library_loads", lambda package: False)
    assert _torchvision.make_importable() is True
    assert made == [("torchvision", "FRAGMENT")]
    assert _torchvision.make_importable() is True  # once is enough
    assert len(made) == 1


def test_without_torchvision_nothing_happens(monkeypatch):
    monkeypatch.setattr(_torchvision, "_definitions", [])
    monkeypatch.setattr(_torchvision, "find_spec", lambda name: None)
    assert _torchvision.make_importable() is False


class _Recorder:
    def define(self, schema):
        assert schema.startswith(("nms(", "qnms("))
