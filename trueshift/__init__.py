"""Vision Transformers whose output does not change when the image moves."""

from . import _old_paths, _timm
from .utils.lazy import names_on_demand

__version__ = "1.0.0"
__getattr__, __dir__, __all__ = names_on_demand(__name__)  # of __init__.pyi

_old_paths.install()
_timm.register_with_timm()
