"""What the documentation draws: readable in light and dark and to a screen reader, and whole in itself."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from drawings import drawings
from drawings.canvas import WIDTH

_SVG = "{http://www.w3.org/2000/svg}"
_WIDE = {"title": 8.6, "": 7.2}
"""Units that a letter takes on average in the widest of the usual fonts."""


@pytest.fixture(params=drawings().items(), ids=lambda drawing: drawing[0])
def drawing(request: pytest.FixtureRequest) -> ElementTree.Element:
    return ElementTree.fromstring(request.param[1])


def test_a_screen_reader_is_told_what_a_drawing_says(drawing: ElementTree.Element) -> None:
    named = {each.get("id"): each.text for each in drawing if each.tag in (f"{_SVG}title", f"{_SVG}desc")}
    assert drawing.get("role") == "img"
    assert all(named[name] for name in str(drawing.get("aria-labelledby")).split())


def test_each_colour_has_one_for_light_and_one_for_dark(drawing: ElementTree.Element) -> None:
    light, dark = str(drawing.findtext(f"{_SVG}style")).split("@media (prefers-color-scheme: dark)")
    coloured = [set(re.findall(r"^(\S+) {[^}]*#", style, re.MULTILINE)) for style in (light, dark)]
    used = {name for each in drawing.iter() for name in str(each.get("class", "")).split()} - {"title", "dashed"}
    assert coloured[0] == coloured[1] >= {f".{name}" for name in used} | {"text"}


def test_a_drawing_refers_to_nothing_outside_itself(drawing: ElementTree.Element) -> None:
    assert not [
        each
        for each in drawing.iter()
        if each.tag.removeprefix(_SVG) in ("script", "image", "use", "foreignObject", "a")
    ]
    assert "url(http" not in ElementTree.tostring(drawing, "unicode")


def test_no_text_runs_out_of_its_box(drawing: ElementTree.Element) -> None:
    boxes = [
        [float(each.get(key, 0)) for key in ("x", "y", "width", "height")]
        for each in drawing.iter(f"{_SVG}rect")
        if each.get("class") == "box"
    ]
    for each in drawing.iter(f"{_SVG}text"):
        x, y = float(each.get("x", 0)), float(each.get("y", 0))
        right = next(
            (left + wide for left, top, wide, high in boxes if left < x < left + wide and top < y < top + high), WIDTH
        )
        if each.get("text-anchor") == "start":
            assert x + len(str(each.text)) * _WIDE.get(str(each.get("class", "")), _WIDE[""]) <= right, each.text
