from ..recipes import list_recipes
from .cli import parse_arguments
from .config import TrainConfig
from .divergence import Diverged
from .dry_run import dry_run
from .recipe import read_recipe
from .trainer import train

__all__ = ["Diverged", "TrainConfig", "dry_run", "list_recipes", "parse_arguments", "read_recipe", "train"]
