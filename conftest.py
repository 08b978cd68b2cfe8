"""Imported before any test: our package first, so that timm and torchvision find what they need."""

import os
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest

if not Path(
    "/dev/nvidiactl"
).exists():  # kernels are tested in Triton's interpreter; it is chosen when they are defined
    os.environ.setdefault("TRITON_INTERPRET", "1")

if "PYTEST_XDIST_WORKER" in os.environ:  # workers, and what they start, share the cores instead of competing for them
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent

# The shapes in our signatures are checked under pytest and nowhere else; a kernel is not a function of Python's.
_files = [path.relative_to(ROOT) for path in (ROOT / "trueshift").rglob("*.py") if path.parent.name != "kernels"]
jaxtyping.install_import_hook([".".join(path.with_suffix("").parts) for path in _files], "shape_checks.checked")

import shape_checks  # noqa: E402, F401
import torch  # noqa: E402
import unchecked  # noqa: E402

import trueshift  # noqa: E402, F401


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def our_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What we say to bad input, which the shape checks would refuse before."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def run_unchecked() -> Callable[..., str]:
    """Run a program without the shape checks, which a compiler cannot look through; its output comes back."""
    return unchecked.run_unchecked
