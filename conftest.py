"""Imported before any test: our package first, so that timm and torchvision find what they need."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

if not Path(
    "/dev/nvidiactl"
).exists():  # kernels are tested in Triton's interpreter; it is chosen when they are defined
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).parent

# The shapes in our signatures are checked under pytest and nowhere else; a kernel is not a function of Python's.
_files = [path.relative_to(ROOT) for path in (ROOT / "trueshift").rglob("*.py") if path.parent.name != "kernels"]
install_import_hook([".".join(path.with_suffix("").parts) for path in _files], "shape_checks.checked")

import torch  # noqa: E402

import trueshift  # noqa: E402, F401

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores instead of competing for them
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def run_unchecked() -> Callable[[str], str]:
    """Run a program without the shape checks, which a compiler cannot look through; its output comes back."""

    def run(program: str) -> str:
        found = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": found}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    return run
