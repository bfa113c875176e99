"""Boxes and arrows as an SVG that reads in light and dark, in a browser and to a screen reader.

It refers to nothing outside itself and runs no script, so that a page may show it as an image. Sizes are in the drawing's own units, a
pixel each at full width.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

WIDTH = 900
LINE = 17
"""Between two lines of small text."""

PARTIES = {
    "node": ("#0969da", "#58a6ff"),
    "chain": ("#8250df", "#bc8cff"),
    "hub": ("#57606a", "#9198a1"),
    "validators": ("#bf3989", "#f778ba"),
    "trainer": ("#1a7f37", "#3fb950"),
    "relays": ("#9a6700", "#d29922"),
}
"""Colours in light and dark. Each box says in words whose it is."""
_PAPER, _BOX, _INK, _QUIET = (
    ("#ffffff", "#0d1117"),
    ("#f6f8fa", "#161b22"),
    ("#1f2328", "#e6edf3"),
    ("#57606a", "#9198a1"),
)

Point = tuple[float, float]


class Canvas:
    def __init__(self, height: int, title: str, description: str) -> None:
        self._height, self._title, self._description = height, title, description
        self._parts: list[str] = []

    def box(self, at: Point, size: Point, party: str, title: str, lines: tuple[str, ...]) -> None:
        """`at` is the upper left corner. The first line is the title, below it whose step this is, then `lines`."""
        (x, y), (width, height) = at, size
        self._parts += [
            f'<rect class="box" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>',
            f'<rect class="{party}" x="{x:g}" y="{y + 8:g}" width="4" height="{height - 16:g}" rx="2"/>',
        ]
        self.text((x + 16, y + 24), title, "title")
        self.text((x + 16, y + 41), party, party)
        for row, line in enumerate(lines, 1):
            self.text((x + 16, y + 43 + row * LINE), line)

    def arrow(self, *points: Point, label: str = "", at: Point | None = None, dashed: bool = False) -> None:
        """Along `points`; `label` is centred at `at`."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(
            f'<polyline class="arrow{" dashed" if dashed else ""}" points="{path}" marker-end="url(#head)"/>'
        )
        if label and at:
            self.text(at, label, "quiet", "middle")

    def bar(self, at: Point, width: float, party: str, label: str, *, faint: bool = False) -> None:
        """A span of time."""
        (x, y), opacity = at, ' opacity="0.35"' if faint else ""
        self._parts.append(f'<rect class="{party}"{opacity} x="{x:g}" y="{y:g}" width="{width:g}" height="10" rx="5"/>')
        self.text((x + width / 2, y - 7), label, "quiet", "middle")

    def line(self, start: Point, end: Point) -> None:
        self._parts.append(
            f'<line class="arrow dashed" x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"/>'
        )

    def text(self, at: Point, words: str, kind: str = "", anchor: str = "start") -> None:
        of = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text{of} x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" height="{self._height}"'
        return "\n".join(
            [
                f'{head} role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(self._title)}</title>',
                f'<desc id="desc">{escape(self._description)}</desc>',
                f"<style>\n{_style(0)}\n@media (prefers-color-scheme: dark) {{\n{_style(1)}\n}}\n</style>",
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
                '<path class="quiet" d="M0 0 8 4 0 8z"/></marker></defs>',
                f'<rect class="paper" width="{WIDTH}" height="{self._height}" rx="10"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def _style(scheme: int) -> str:
    rules = [
        f".paper {{ fill: {_PAPER[scheme]} }}",
        f".box {{ fill: {_BOX[scheme]}; stroke: {_QUIET[scheme]}; stroke-opacity: .4 }}",
    ]
    rules += [
        f"text {{ fill: {_INK[scheme]}; font: 13px system-ui, sans-serif }}",
        ".title { font-size: 15px; font-weight: 600 }",
        f".quiet {{ fill: {_QUIET[scheme]} }}",
        f".arrow {{ fill: none; stroke: {_QUIET[scheme]}; stroke-width: 1.5 }}",
        ".dashed { stroke-dasharray: 5 4 }",
    ]
    return "\n".join(rules + [f".{party} {{ fill: {colours[scheme]} }}" for party, colours in PARTIES.items()])
