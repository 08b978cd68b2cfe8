"""Register our networks in timm when timm is imported, by whomever: ``import trueshift`` itself stays light."""

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ._torchvision import make_importable

_MODELS = "trueshift.models"  # registers when it is imported


class _Registration(MetaPathFinder):
    """Watches imports of timm and of our own modules, and registers when timm is there and none is half imported."""

    depth = 0

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in ("timm", "torchvision") and not fullname.startswith("trueshift."):
            return None
        sys.meta_path.remove(self)
        try:
            if fullname == "torchvision":
                make_importable()
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec and spec.loader and fullname != "torchvision":
            spec.loader.exec_module = self._watched(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec

    def _watched(self, run: Any) -> Any:
        def run_and_register(module: ModuleType) -> None:
            self.depth += 1
            try:
                run(module)
            finally:
                self.depth -= 1
            if self.depth == 0 and "timm" in sys.modules and self in sys.meta_path:
                sys.meta_path.remove(self)
                import_module(_MODELS)

        return run_and_register


def register_with_timm() -> None:
    """Register now if timm is there already, otherwise when it is."""
    if "timm" in sys.modules:
        import_module(_MODELS)
    elif not any(isinstance(finder, _Registration) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Registration())
