"""Imported before any test: our package first, so that timm and torchvision find what they need."""

import os

import pytest
from jaxtyping import install_import_hook

# The shapes in our signatures are checked under pytest and nowhere else. The compiler cannot look through the checks:
# tests of compiled code run in a process of their own (tests/conftest.py).
if "TRUESHIFT_UNCHECKED" not in os.environ:
    install_import_hook("trueshift", "beartype.beartype")

import torch

import trueshift  # noqa: F401


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
