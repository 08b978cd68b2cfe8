"""The command line of training: recipes, and options that override their values."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, reduce
from typing import Any, get_args, get_type_hints

from jsonargparse import ArgumentParser

from ..commands import respelled
from .config import TrainConfig
from .recipe import overlaid, read_recipe, recipe_text


@dataclass(frozen=True)
class Arguments:
    """A parsed command line."""

    config: TrainConfig
    dry_run: bool
    print_config: bool

    @property
    def text(self) -> str:
        """The whole configuration as a recipe."""
        return recipe_text(self.config.to_dict())


def parse_arguments(arguments: Sequence[str], program: str = "trueshift train") -> Arguments:
    """Parse a command line; errors are one line each. Names may have dashes in place of underscores."""
    recipes = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    recipes.add_argument("--config", action="append", default=[])
    recipes.add_argument("--dry_run", action="store_true")
    recipes.add_argument("--print_config", action="store_true")
    try:
        given, rest = recipes.parse_known_args(respelled(arguments, "-", "_"))
        recipe: dict[str, Any] = reduce(overlaid, map(read_recipe, given.config), {})
        _check(recipe, TrainConfig)
        parser = _parser(program)
        values = parser.parse_args(rest, namespace=parser.parse_object(recipe))
    except argparse.ArgumentError as error:
        text = re.sub(r"<class '(\w+)'>", lambda kind: _KINDS.get(kind[1], kind[0]), " ".join(str(error).split()))
        unknown = re.match(r"unrecognized arguments: --([\w.]+)", text)
        raise ValueError(f"{text}: {_suggestion(unknown[1], '--')}" if unknown else text) from error
    _check(values.as_dict(), TrainConfig)
    config = TrainConfig(**vars(parser.instantiate(values)))
    return Arguments(config, given.dry_run, given.print_config)


def _check(values: dict[str, Any], kind: Any, prefix: str = "") -> None:
    """Refuse unknown names, and what the parser accepts: empty values, and values in place of sections."""
    known = get_type_hints(kind)
    for key, value in values.items():
        name, hint = prefix + key, known.get(key)
        if hint is None:
            name += f".{next(iter(value))}" if isinstance(value, dict) and value else ""
            raise ValueError(f"no value is called {name}: {_suggestion(name)}")
        if value is None and type(None) not in get_args(hint):
            raise ValueError(f"{name} is empty: needs a value, or to be left out")
        if is_dataclass(hint):
            if not isinstance(value, dict):
                raise ValueError(f"{name} is {value!r}: needs values by name, such as {fields(hint)[0].name}")
            _check(value, hint, f"{name}.")


def _suggestion(name: str, dashes: str = "") -> str:
    """Known names that resemble an unknown one."""
    names, last = list(_parser().get_defaults().keys()), name.rpartition(".")[2]
    close = [each for each in names if each.rpartition(".")[2] == last] or get_close_matches(name, names)
    meant = f"did you mean {' or '.join(dashes + each for each in close)}? " if close else ""
    return f"{meant}`trueshift train --help` lists all"


@cache  # making one takes longer than reading a recipe
def _parser(program: str = "trueshift train") -> Any:
    parser = ArgumentParser(program, _USAGE, _ABOUT, exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(TrainConfig)
    return parser


_KINDS = {"int": "whole number", "float": "number", "tuple": "list, as [a, b]", "str": "word"}
_USAGE = "trueshift train --config RECIPE [--config RECIPE ...] [--dry-run] [--print_config] [--NAME VALUE ...]"
_ABOUT = """Train a network by a recipe: a name of `trueshift recipes`, or a file. Later recipes override earlier ones,
and the options below, with dashes or underscores, override all. --dry-run makes one step on synthetic data,
--print_config only shows the values."""
