"""A command line from functions: their arguments become options, their docstrings the help."""

import argparse
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Union, get_args, get_origin, get_type_hints

_TUPLES = {2: ("HEIGHT", "WIDTH"), 3: ("R", "G", "B")}  # names of the values of one option


def command_line(program: str, about: str, commands: Mapping[str, Callable[..., Any]]) -> argparse.ArgumentParser:
    """A parser with one subcommand for each function; ``namespace.run(namespace)`` calls the one asked for.

    Arguments before ``*`` are positional, the others options, required without a default; ``--batch_size`` is taken for
    ``--batch-size``. A bool is a flag, a list takes several words. An argument with a dataclass as its default stands
    for one option per field.
    A function of ``*arguments`` gets all words as they are.
    """
    parser = argparse.ArgumentParser(program, description=about)
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_EitherSpelling)
    for name, function in commands.items():
        summary, helps = _read_docstring(function)
        parameters = list(inspect.signature(function).parameters.values())
        if parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
            # no word begins with the prefix of an option, so that all are taken as they are, --help too
            untouched = subparsers.add_parser(name, help=summary, add_help=False, prefix_chars="\0")
            untouched.add_argument("arguments", nargs=argparse.REMAINDER)
            untouched.set_defaults(run=lambda given, function=function: function(*given.arguments))
            continue
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        hints = get_type_hints(function)
        for argument in parameters:
            if is_dataclass(argument.default):
                _add_fields(subparser, argument.default)
            else:
                positional = argument.kind is not inspect.Parameter.KEYWORD_ONLY
                _add(subparser, argument.name, hints[argument.name], helps[argument.name], argument.default, positional)
        subparser.set_defaults(run=partial(_call, function, parameters))
    return parser


class _EitherSpelling(argparse.ArgumentParser):
    """Options may have underscores in place of dashes."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.prefix_chars == "-" and args is not None:
            args = respelled(args, "_", "-")
        return super().parse_known_args(args, namespace)


def respelled(words: Sequence[str], old: str, new: str) -> list[str]:
    """The words with another character in the names of options; their values stay."""
    return [re.sub(r"^--[^=]+", lambda name: f"--{name[0][2:].replace(old, new)}", word) for word in words]


def _call(function: Callable[..., Any], parameters: list[inspect.Parameter], given: argparse.Namespace) -> Any:
    values = vars(given)
    for argument in parameters:
        if is_dataclass(argument.default):
            kind: Any = type(argument.default)
            values[argument.name] = kind(**{each.name: values[each.name] for each in fields(kind)})
    return function(**{argument.name: values[argument.name] for argument in parameters})


def _add_fields(parser: argparse.ArgumentParser, defaults: Any) -> None:
    kind = type(defaults)
    helps = {name: text for base in reversed(kind.__mro__) for name, text in _read_docstring(base)[1].items()}
    hints = get_type_hints(kind)
    for each in fields(defaults):
        _add(parser, each.name, hints[each.name], helps[each.name], getattr(defaults, each.name))


def _add(
    parser: argparse.ArgumentParser, name: str, hint: Any, text: str, default: Any, positional: bool = False
) -> None:
    required = default is inspect.Parameter.empty
    options: dict[str, Any] = {"help": text.replace("%", "%%")}
    if not required:
        options["default"] = default
        if default is not None and default is not False and default != "":
            options["help"] += f" (default: {default})"
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if hint is bool:
        options["action"] = "store_true"
    elif get_origin(hint) is list:
        (kind,) = get_args(hint)
        options.update(type=kind, nargs="+", metavar="NAME" if kind is str else name.upper())
    elif get_origin(hint) is tuple:
        words = _TUPLES[len(get_args(hint))]
        options.update(type=get_args(hint)[0], nargs=len(words), metavar=words, action=_Tuple)
    else:
        options.update(type=hint, metavar=name.upper())
    if positional:
        if not required:
            options["nargs"] = "?"
        parser.add_argument(name, **options)
    else:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, required=required, **options)


class _Tuple(argparse.Action):
    """Several values of one option as a tuple: argparse itself makes lists."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, tuple(values))


def _read_docstring(thing: Any) -> tuple[str, dict[str, str]]:
    """The first paragraph, and the ``Args`` section by argument."""
    text = inspect.getdoc(thing) or ""
    summary, _, rest = text.partition("\n\n")
    section = rest.partition("Args:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return " ".join(summary.split()), {name: " ".join(found.split()) for name, found in entries}
