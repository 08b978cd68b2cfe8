"""Let torchvision be imported beside a CPU-only torch.

The torchvision wheel on PyPI is built against CUDA. Beside a CPU-only torch its compiled library cannot be loaded,
and importing it fails with "operator torchvision::nms does not exist": it registers shapes for two operators that
nobody defined. timm imports torchvision, so without help timm fails too. We define the two missing schemas, and only
where the library really does not load: a working torchvision is left alone.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_definitions: list[Any] = []  # a definition lives as long as its Library object


def make_importable() -> bool:
    """Define torchvision's missing operators if its compiled library cannot be loaded; say whether that was needed."""
    import torch

    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _definitions or _library_loads(Path(spec.origin).parent):
        return bool(_definitions)
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(_SCHEMA.format(name))
    _definitions.append(library)
    return True


def _library_loads(package: Path) -> bool:
    import torch

    for path in sorted([*package.glob("_C*.so"), *package.glob("_C*.pyd"), *package.glob("_C*.dylib")]):
        try:
            torch.ops.load_library(path)
        except OSError:
            continue
        return True
    return False
