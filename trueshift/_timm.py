"""Register our networks in timm when timm is imported, by whomever: ``import trueshift`` itself stays light."""

import sys
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ._torchvision import make_importable

# Registers when it is imported. What it imports itself does not import timm, so none of that is half imported then.
_MODELS = "trueshift.models"


class _Registration(MetaPathFinder):
    """Waits for timm, and for torchvision, which may need our help."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in ("timm", "torchvision"):
            return None
        sys.meta_path.remove(self)
        try:
            if fullname == "torchvision":
                make_importable()
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if fullname == "timm" and spec and spec.loader:
            spec.loader.exec_module = partial(self._run_and_register, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _run_and_register(self, run: Any, module: ModuleType) -> None:
        run(module)
        sys.meta_path.remove(self)
        import_module(_MODELS)


def register_with_timm() -> None:
    """Register now if timm is there already, otherwise when it is."""
    if "timm" in sys.modules:
        import_module(_MODELS)
    elif not any(isinstance(finder, _Registration) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Registration())
