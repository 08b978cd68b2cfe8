"""The documentation site builds without a warning, covers the public names, and asks for nothing from outside."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import trueshift

ROOT = Path(__file__).parents[1]
# what a browser fetches to show a page
OUTSIDE = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?((?:https?:)?//[^"' >]+)"""
    r"""|<link\b(?![^>]*rel=["']?(?:canonical|next|prev))[^>]*\bhref=["']?((?:https?:)?//[^"' >]+)"""
)


def test_every_public_name_is_in_the_reference():
    lines = (ROOT / "docs" / "api.md").read_text().splitlines()
    named = {line.removeprefix("::: trueshift.").split(".")[0] for line in lines if line.startswith(":::")}
    assert named == {*trueshift.__all__, "testing", "eval", "data"}


def test_requests_to_outside_are_seen():
    page = '<link rel="canonical" href="https://a.test"><img class="x" src="a.png"><a href="https://b.test">b</a>'
    assert not OUTSIDE.search(page)
    for wrong in ('<link rel="stylesheet" href="//c.test/a.css">', "<script async src='https://c.test/a.js'>"):
        assert OUTSIDE.search(page + wrong)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs mkdocs: pip install 'trueshift[docs]', or make docs")
def test_the_site_builds_without_a_warning_and_without_a_request(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "start.html", "api.html", "CHANGELOG.html", "trueshift/weights/index.html"} <= pages.keys()
    assert {name: outside for name, text in pages.items() if (outside := OUTSIDE.findall(text))} == {}
    assert 'id="trueshift.steady"' in pages["api.html"]
    assert "<title>trueshift playground</title>" in pages["live/index.html"]
    assert all('href="live/index.html"' in pages[name] for name in ("index.html", "playground.html"))
    assert "&gt;&gt;&gt;" in pages["api.html"], "examples are blocks of code"
    assert not any(":class:`" in text or ".. math::" in text for text in pages.values())
