"""Check what the user gave, and what is installed, before any work is done; say what went wrong in one line."""

from importlib import import_module
from typing import Any

_SEEDS = 1 << 63  # as many as every generator takes


def check_at_least(name: str, value: float | None, least: float) -> None:
    """Refuse a number below the least; None passes."""
    if value is not None and not value >= least:  # nan is not
        raise ValueError(f"{name} is {value}: needs at least {least}")


def check_seed(seed: int) -> None:
    """Refuse what torch, numpy and Python cannot all be seeded by."""
    check_at_least("seed", seed, 0)
    if seed >= _SEEDS:
        raise ValueError(f"seed is {seed}: needs less than 2**63")


def import_optional(package: str, needed: str) -> Any:
    """A package that not everybody has; without it, an error that says what needs it and how to get it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(needed) from error


def first_line(error: BaseException) -> str:
    """What an error says, in one line of at most 200 letters; its name, if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
