"""Packages whose names are imported when they are first used. A stub, ``__init__.pyi``, lists them."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def names_on_demand(
    package: str, otherwise: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package: its stub's names, its modules, and ``otherwise``."""
    module = sys.modules[package]
    stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    where = {alias.name: "." * node.level + str(node.module) for node in imports for alias in node.names}
    module.__class__ = _Package

    def __getattr__(name: str) -> Any:
        if name in where:
            value = getattr(import_module(where[name], package), name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}"):
            value = import_module(f"{package}.{name}")
        elif otherwise:
            return otherwise(name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, value)
        return value

    return __getattr__, lambda: sorted({*vars(module), *where}), sorted(where)


class _Package(ModuleType):
    """A function wins over the module it is in, where both have one name: importing the module would set that."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in vars(self).get("__all__", ()):
            value = getattr(value, name, value)
        super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        return import_module, (self.__name__,)  # as tools pickle modules that they know by their exact type
