"""Old names that still work: each warns once in a process."""

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_warned: set[tuple[str, str]] = set()


def warn_deprecated(old: str, new: str) -> None:
    """Emit a DeprecationWarning, once for each pair of names, at the first caller outside the package."""
    if (old, new) in _warned:
        return
    _warned.add((old, new))
    package, level, frame = __name__.partition(".")[0], 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=level)


def renamed_arguments(**renamed: str) -> Callable[[_Function], _Function]:
    """Decorate a function so that keyword arguments are also accepted under their old names, ``old="new"``."""

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def accepting(*args: Any, **given: Any) -> Any:
            for old, new in renamed.items():
                if old in given:
                    if new in given:
                        raise TypeError(f"{old} and {new} are the same argument: give {new} alone")
                    warn_deprecated(f"{accepting.__name__}({old}=...)", f"{new}=")
                    given[new] = given.pop(old)
            return function(*args, **given)

        return accepting  # type: ignore[return-value]

    return decorate


def renamed_attributes(module: str, **renamed: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module some of whose names have changed, ``old="new"``."""

    def __getattr__(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_deprecated(f"{module}.{name}", f"{module}.{renamed[name]}")
        return getattr(sys.modules[module], renamed[name])

    return __getattr__
