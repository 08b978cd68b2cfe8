"""The tables of the paper's source, as numbers."""

import re
from pathlib import Path

PAPER = Path(__file__).parents[2] / "shared" / "paper.tex"
_RULES = r"\\(?:midrule|bottomrule|specialrule\S*)"


def caption_of(label: str) -> str:
    """The bold beginning of a table's caption."""
    text = PAPER.read_text()
    table = text[: text.index(rf"\label{{tab:{label}}}")].rpartition(r"\begin{table")[2]
    return re.search(r"\\textbf\{([^}]*)[:.]\}", table[table.index(r"\caption") :])[1]


def rows_of(label: str) -> dict[str, list[list[float | None]]]:
    """Each row of a table by its name: mean and deviation of each cell, None where the paper prints none."""
    text = PAPER.read_text()
    table = text[: text.index(rf"\label{{tab:{label}}}")].rpartition(r"\begin{table")[2]
    body = table[table.index(r"\midrule") :].partition(r"\end{tabular}")[0]
    found = {}
    for row in re.sub(_RULES, " ", body).split(r"\\"):
        name, *cells = row.split("&")
        if cells:
            found[_plain(name)] = [_numbers(cell) for cell in cells]
    return found


def _plain(name: str) -> str:
    without = re.sub(r"\\(?:textbf|texttt|bf|showrowcolors|hiderowcolors|rowcolors)|[{}$]|\(Ours\)", "", name)
    return " ".join(re.sub(r"\s*\n\s*", " ", without).split()).replace(" )", ")")


def _numbers(cell: str) -> list[float | None]:
    plain = re.sub(r"\\bf|\\vspace\{[^}]*\}|[{}$\s]", "", cell)
    mean, _, deviation = plain.partition(r"\pm")
    return [float(mean.rstrip(".")), float(deviation) if deviation else None]
