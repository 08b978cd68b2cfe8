"""Training: recipes of the paper, resumable runs on one device or many."""

from .arguments import parse_arguments
from .config import TrainConfig
from .dry_run import dry_run
from .loop import train
from .recipe import list_recipes, read_recipe
from .watch import Diverged

__all__ = ["Diverged", "TrainConfig", "dry_run", "list_recipes", "parse_arguments", "read_recipe", "train"]
