"""Assertions of the shift law for any module, ours or yours, and the images that break it."""

from .images import hostile_images, photographs
from .shift_law import assert_equivariant, assert_invariant

__all__ = ["assert_equivariant", "assert_invariant", "hostile_images", "photographs"]
