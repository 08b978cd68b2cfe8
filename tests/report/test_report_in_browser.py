"""The page in a real browser, light and dark, wide and narrow: images arrive, nothing sticks out, all can be read."""

import itertools

import pytest
from browser import assert_readable, needs_browser, open_browser

pytestmark = needs_browser
NARROWEST = "Math.min(...[...document.querySelectorAll('dd, th')].map(e => e.getBoundingClientRect().width))"


@pytest.mark.parametrize(
    "which", ["written", *(pytest.param(name, marks=pytest.mark.slow) for name in ("written_scenes", "written_fields"))]
)
def test_the_page_can_be_read(request, which):
    problems = []
    with open_browser() as page:
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda made: problems.append(made.url) if made.url.startswith("http") else None)
        page.on("dialog", lambda dialog: (problems.append("dialog"), dialog.dismiss()))
        page.goto(request.getfixturevalue(which)[1].as_uri())
        for scheme, width in itertools.product(("light", "dark"), (1280, 390)):
            assert_readable(page, scheme, width)
            assert page.evaluate(NARROWEST) > 100  # long names leave room for words
            page.wait_for_function("[...document.images].every(image => image.complete)")
            assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert problems == []
