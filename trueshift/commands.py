"""A command line from functions: their arguments become options, their docstrings the help."""

import argparse
import inspect
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

_TUPLES = {2: ("HEIGHT", "WIDTH"), 3: ("R", "G", "B")}  # what so many values of one option are called


def command_line(program: str, about: str, commands: Mapping[str, Callable[..., Any]]) -> argparse.ArgumentParser:
    """A parser with one subcommand for each function; ``namespace.run(namespace)`` calls the one asked for.

    Arguments before ``*`` are positional, the others options with dashes; without a default an option must be given.
    A truth value is a flag, a list takes several words. A function of ``*arguments`` gets all words as they are.
    """
    parser = argparse.ArgumentParser(program, description=about)
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, function in commands.items():
        summary, helps = _read_docstring(function)
        parameters = list(inspect.signature(function).parameters.values())
        if parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
            _add_untouched(subparsers, name, summary, function)
            continue
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        hints = get_type_hints(function)
        names = []
        for argument in parameters:
            _add(subparser, argument, hints[argument.name], helps[argument.name])
            names.append(argument.name)
        subparser.set_defaults(run=_caller(function, names))
    return parser


def _add_untouched(subparsers: Any, name: str, summary: str, function: Callable[..., Any]) -> None:
    # no word begins with the prefix of an option, so that all are taken as they are, --help too
    subparser = subparsers.add_parser(name, help=summary, add_help=False, prefix_chars="\0")
    subparser.add_argument("arguments", nargs=argparse.REMAINDER)
    subparser.set_defaults(run=lambda given: function(*given.arguments))


def _caller(function: Callable[..., Any], names: list[str]) -> Callable[[argparse.Namespace], Any]:
    return lambda given: function(**{name: getattr(given, name) for name in names})


def _add(parser: argparse.ArgumentParser, argument: inspect.Parameter, hint: Any, told: str) -> None:
    positional = argument.kind is not inspect.Parameter.KEYWORD_ONLY
    required = argument.default is inspect.Parameter.empty
    options: dict[str, Any] = {"help": told.replace("%", "%%")}
    if not required:
        options["default"] = argument.default
        if argument.default not in (None, False, ""):
            options["help"] += f" (default: {argument.default})"
    hint = _without_none(hint)
    if hint is bool:
        options["action"] = "store_true"
    elif get_origin(hint) is list:
        options.update(type=get_args(hint)[0], nargs="+", metavar="NAME")
    elif get_origin(hint) is tuple:
        words = _TUPLES[len(get_args(hint))]
        options.update(type=get_args(hint)[0], nargs=len(words), metavar=words, action=_Tuple)
    else:
        options.update(type=hint, metavar=argument.name.upper())
    if positional:
        if not required:
            options["nargs"] = "?"
        parser.add_argument(argument.name, **options)
    else:
        parser.add_argument(f"--{argument.name.replace('_', '-')}", dest=argument.name, required=required, **options)


class _Tuple(argparse.Action):
    """Several values of one option as the tuple that the function asks for: argparse itself makes lists."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, tuple(values))


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    return hint


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The first paragraph, and what the ``Args`` section says of each argument."""
    text = inspect.getdoc(function) or ""
    summary, _, rest = text.partition("\n\n")
    section = rest.partition("Args:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return " ".join(summary.split()), {name: " ".join(told.split()) for name, told in entries}
