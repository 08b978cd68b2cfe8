"""The command line of training: recipes, and options that override their values."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from jsonargparse import ArgumentParser

from .config import TrainConfig
from .recipe import read_recipes, recipe_text


@dataclass(frozen=True)
class Arguments:
    """A parsed command line.

    Args:
        config: the whole configuration.
        dry_run: try everything for one step on synthetic data.
        print_config: only show the configuration.
    """

    config: TrainConfig
    dry_run: bool
    print_config: bool

    @property
    def text(self) -> str:
        """The whole configuration as a recipe."""
        return recipe_text(self.config.to_dict())


def parse_arguments(arguments: Sequence[str], program: str = "trueshift train") -> Arguments:
    """Parse a command line; errors are one line each."""
    recipes = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    recipes.add_argument("--config", action="append", default=[])
    recipes.add_argument("--dry-run", "--dry_run", action="store_true", dest="dry_run")
    recipes.add_argument("--print_config", "--print-config", action="store_true", dest="print_config")
    given, rest = recipes.parse_known_args(arguments)
    parser = _parser(program)
    recipe = read_recipes(given.config)
    _refuse_unknown(recipe, TrainConfig)
    try:
        values = parser.parse_object(recipe)
        values = parser.parse_args(rest, namespace=values)
        _refuse_gaps(values.as_dict(), TrainConfig)
        config: TrainConfig = TrainConfig(**vars(parser.instantiate(values)))
    except argparse.ArgumentError as error:
        raise ValueError(_message(error)) from error
    return Arguments(config, given.dry_run, given.print_config)


def _message(error: argparse.ArgumentError) -> str:
    """The parser's error in one line, with a suggestion."""
    text = re.sub(r"<class '(\w+)'>", lambda kind: _KINDS.get(kind[1], kind[0]), " ".join(str(error).split()))
    unknown = re.match(r"unrecognized arguments: --([\w.]+)", text)
    return f"{text}: {_suggestion(unknown[1], '--')}" if unknown else text


def _refuse_unknown(values: dict[str, Any], kind: Any, prefix: str = "") -> None:
    """Refuse unknown names in a recipe."""
    known = get_type_hints(kind)
    for key, value in values.items():
        section = known.get(key)
        if section is None:
            inside = f".{next(iter(value))}" if isinstance(value, dict) and value else ""
            name = f"{prefix}{key}{inside}"
            raise ValueError(f"no value is called {name}: {_suggestion(name)}")
        if is_dataclass(section) and isinstance(value, dict):
            _refuse_unknown(value, section, f"{prefix}{key}.")


def _suggestion(name: str, dashes: str = "") -> str:
    """Known names that resemble an unknown one."""
    names = _names(TrainConfig)
    last = name.rpartition(".")[2]
    close = [each for each in names if each.rpartition(".")[2] == last] or get_close_matches(name, names)
    meant = f"did you mean {' or '.join(dashes + each for each in close)}? " if close else ""
    return f"{meant}`trueshift train --help` lists all"


def _names(kind: Any, prefix: str = "") -> list[str]:
    """All options."""
    found: list[str] = []
    for key, hint in get_type_hints(kind).items():
        found += _names(hint, f"{prefix}{key}.") if is_dataclass(hint) else [prefix + key]
    return found


def _refuse_gaps(values: dict[str, Any], kind: Any, prefix: str = "") -> None:
    """Refuse empty values and values in place of sections, which the parser accepts."""
    for key, hint in get_type_hints(kind).items():
        value = values[key]
        if value is None and type(None) not in get_args(hint):
            raise ValueError(f"{prefix}{key} is empty: needs a value, or to be left out")
        if is_dataclass(hint):
            if not isinstance(value, dict):
                raise ValueError(f"{prefix}{key} is {value!r}: needs values by name, such as {fields(hint)[0].name}")
            _refuse_gaps(value, hint, f"{prefix}{key}.")


def _parser(program: str) -> Any:
    parser = ArgumentParser(prog=program, exit_on_error=False, usage=_USAGE, description=_ABOUT, allow_abbrev=False)
    parser.add_class_arguments(TrainConfig)
    return parser


_KINDS = {"int": "whole number", "float": "number", "tuple": "list, as [a, b]", "str": "word"}
_USAGE = "trueshift train --config RECIPE [--config RECIPE ...] [--dry-run] [--print_config] [--NAME VALUE ...]"
_ABOUT = """Train a network by a recipe: a name of `trueshift recipes`, or a file. Later recipes override earlier ones,
and the options below override all. --dry-run makes one step on synthetic data, --print_config only shows the values."""
