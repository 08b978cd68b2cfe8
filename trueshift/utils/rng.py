"""Random numbers that depend on what they are for, not on what was drawn before.

Augmentation is drawn from (seed, epoch, sample), stochastic depth and random grids from (seed, step, process). So a
sample is changed in the same way on any number of processes, and a run resumes without saved generator states.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random import get_bit_generator, set_bit_generator  # type: ignore[attr-defined] # numpy's stubs forget

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SEED_MASK = 0x7FFFFFFFFFFFFFFF
_OTHER = np.random.MT19937(0)


def hashed(*numbers: int | np.ndarray) -> np.ndarray:
    """64 mixed bits for each combination of numbers; arrays are combined element by element."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
        state = np.zeros((), np.uint64)
        for number in numbers:
            state = (state ^ np.asarray(number).astype(np.uint64)) + _STEP
            state = (state ^ (state >> np.uint64(30))) * _MIX[0]
            state = (state ^ (state >> np.uint64(27))) * _MIX[1]
            state = state ^ (state >> np.uint64(31))
    return np.asarray(state)  # numbers alone give a scalar


def uniform(*numbers: int | np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each combination."""
    return np.asarray((hashed(*numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def seed_everything(*numbers: int) -> None:
    """Seed Python's, numpy's and torch's generators, those of GPUs included."""
    bits = int(hashed(*numbers))
    _seed_cpu(bits)
    if torch.cuda.is_initialized():  # otherwise torch would record the call with all its frames
        torch.cuda.manual_seed_all(bits & _SEED_MASK)


def _seed_cpu(bits: int) -> None:
    random.seed(bits)
    np.random.seed(bits & 0xFFFFFFFF)  # noqa: NPY002 -- timm draws from this one
    torch.random.default_generator.manual_seed(bits & _SEED_MASK)


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seed the CPU's generators, and restore them afterwards."""
    before = random.getstate(), get_bit_generator(), torch.random.get_rng_state()
    # another generator for a while: to copy numpy's state, or to make one, takes longer than to change a small image
    set_bit_generator(_OTHER if before[1] is not _OTHER else np.random.MT19937(0))
    _seed_cpu(int(hashed(*numbers)))
    try:
        yield
    finally:
        random.setstate(before[0])
        set_bit_generator(before[1])
        torch.random.set_rng_state(before[2])


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """If wanted, allow only algorithms that reproduce their bits; enter before anything uses a GPU."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault(WORKSPACE, ":4096:8")  # read once by cuBLAS, without which torch refuses to multiply
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
