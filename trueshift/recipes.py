"""Find recipes for training, without the packages that training needs."""

import re
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path

FOLDER = Path(__file__).parent / "train" / "recipes"


def list_recipes() -> list[str]:
    """Names of the recipes in the package, without bases, which begin with ``_``."""
    names = (file.relative_to(FOLDER).with_suffix("").as_posix() for file in FOLDER.rglob("*.yaml"))
    return sorted(name for name in names if not re.search(r"(^|/)_", name))


def find_recipe(name: str | Path, beside: Path | None = None) -> Path:
    """The file of a recipe: a path, also from the folder ``beside``, or a name of :func:`list_recipes`."""
    for file in (*([beside / f"{name}.yaml", beside / name] if beside else []), Path(name), FOLDER / f"{name}.yaml"):
        if file.is_file():
            return file
    close = get_close_matches(str(name), list_recipes(), n=3)
    meant = f"did you mean {', '.join(close)}?" if close else "needs a file, or one of `trueshift recipes`"
    raise FileNotFoundError(f"there is no recipe {name}: {meant}")


def about(name: str | Path) -> str:
    """The comments a recipe begins with."""
    comments = takewhile(lambda line: line.startswith("#"), find_recipe(name).read_text().splitlines())
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comments)
