"""Random numbers that depend on what they are for, not on what was drawn before.

Augmentation is drawn from (seed, epoch, picture), stochastic depth from (seed, step, process). So the same picture is
changed in the same way on any number of processes, and a run that goes on from a checkpoint needs no saved state of
any generator.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)


def hashed(*numbers: int | np.ndarray) -> np.ndarray:
    """64 mixed bits for each combination of numbers; arrays among them are combined element by element."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is what is wanted
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
    """Seed all usual generators, on this process and its GPU."""
    bits = int(hashed(*numbers))
    random.seed(bits)
    np.random.seed(bits & 0xFFFFFFFF)  # noqa: NPY002 -- timm draws from this one
    torch.random.default_generator.manual_seed(bits & 0x7FFFFFFFFFFFFFFF)
    if torch.cuda.is_initialized():  # torch.manual_seed would note the call with all its frames where it is not
        torch.cuda.manual_seed_all(bits & 0x7FFFFFFFFFFFFFFF)


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seed the generators of the CPU for a moment, and put them back."""
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    bits = int(hashed(*numbers))
    random.seed(bits)
    np.random.seed(bits & 0xFFFFFFFF)  # noqa: NPY002
    torch.random.default_generator.manual_seed(bits & 0x7FFFFFFFFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.random.set_rng_state(before[2])
