"""Training: recipes of the paper, resumable runs on one device or many."""

from ..utils.lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__)
