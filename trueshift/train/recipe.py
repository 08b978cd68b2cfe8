"""Read recipes: YAML files with some values of a :class:`~trueshift.train.config.TrainConfig`.

A recipe may name others under ``base`` whose values it takes over.
"""

import re
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from ..recipes import find_recipe


def read_recipe(name: str | Path) -> dict[str, Any]:
    """The values of a recipe, including those of its bases."""
    return _read(find_recipe(name), ())


def _read(file: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if file.resolve() in above:
        raise ValueError(f"{file} is its own base")
    try:
        given = yaml.load(file.read_text(), Loader=_Loader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read as a recipe: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise ValueError(f"{file} holds a {type(given).__name__}: needs values by name, e.g. 'batch_size: 128'")
    bases = given.pop("base", None) or []
    named = [bases] if isinstance(bases, str) else bases
    if not isinstance(named, list) or not all(isinstance(base, str) for base in named):
        raise ValueError(f"{file}: base is {bases}: needs the name of a recipe, or several in a list")
    below = [_read(find_recipe(base, file.parent), (*above, file.resolve())) for base in named]
    return reduce(overlaid, [*below, given])


def overlaid(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both merged value by value; ``above`` overrides."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = overlaid(merged[key], value) if both else value
    return merged


class _Loader(yaml.SafeLoader):
    """As YAML 1.2: 1e-4 is a number, and of the words only true and false are not; in YAML 1.1 no and off are, too.

    Nor may a value be given twice: PyYAML would drop the first, with all that is in it.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if twice := [key for key, _ in node.value if names.count(key.value) > 1]:
            raise yaml.MarkedYAMLError(problem=f"{twice[-1].value} is given twice", problem_mark=twice[-1].start_mark)
        return super().construct_mapping(node, deep)


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    key: [(tag, pattern) for tag, pattern in value if tag != _BOOL]
    for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


class _Dumper(yaml.SafeDumper):
    """Quotes strings such as '1e5', which the loader would read as numbers."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def recipe_text(values: dict[str, Any]) -> str:
    """Values as a recipe."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)
