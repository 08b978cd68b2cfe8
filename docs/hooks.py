"""What the site needs beyond mkdocs: pages outside of docs/, docstrings as Markdown, and the playground itself."""

import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from trueshift.playground import write_playground

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks/README.md",
    "trueshift/data/sample_images/README.md",
    "trueshift/weights/README.md",
)
COMMAND = "    trueshift playground\n"
LIVE = '<p><a class="md-button" href="live/index.html">Open the playground</a></p>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/, under their path in the repository."""
    for path in OUTSIDE:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links are written for the repository, in which docs/ is a folder; markers of numbers are left out.

    Below the command for the playground the site has the playground itself.
    """
    here = page.file.src_uri
    folder = posixpath.dirname(here if here in OUTSIDE else f"docs/{here}")

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        return f"]({posixpath.relpath(target.removeprefix('docs/'), posixpath.dirname(here) or '.')}"

    markdown = re.sub(r"\]\(((?![a-z]+:)[^)#\s]+)", on_site, markdown)
    return re.sub(r"<!--.*?-->", "", markdown, flags=re.DOTALL).replace(COMMAND, f"{COMMAND}\n{LIVE}\n\n")


def on_post_build(config: MkDocsConfig) -> None:
    """The playground with all families, loaded when chosen."""
    write_playground(Path(config.site_dir) / "live")


class Docstrings(Extension):
    """Roles become code, formulas MathML, and examples blocks of code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is None:
            return
        text = re.sub(r":math:`(.+?)`", lambda part: convert(part[1]), obj.docstring.value)
        text = re.sub(
            r"^\.\. math::\s*(.+(?:\n[ \t]+.+)*)",
            lambda part: f'<div style="overflow-x: auto">{convert(" ".join(part[1].split()), display="block")}</div>',
            text,
            flags=re.MULTILINE,
        )
        text = re.sub(r":\w+:`[~.]?([\w.]+)`", r"`\1`", text)
        obj.docstring.value = re.sub(r"^(>>> (?:.+\n?)+)", r"```pycon\n\1\n```\n", text, flags=re.MULTILINE)
