"""The formula that a sentence states: its last run of mathematical signs, numbers and their units, or the list that ends with it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.environments.maths import units

_PIECE = re.compile(
    r"\$\$.{1,2000}?\$\$|\$[^$\n]{1,1000}\$|\\\(.{1,1000}?\\\)|\\\[.{1,2000}?\\\]|\*\*[^*\n]{1,300}\*\*"
    r"|[(\[\]][^()\[\]\n]{0,80},[^()\[\]\n]{0,80}[)\]\[]|\S+",
    re.DOTALL,
)
_SIGNS = re.compile(r"[0-9√π∞∅ℝ½⅓¼⅔¾=<>≤≥≠∪∩∈]|\\(?!text)[A-Za-z]")
_OPERATORS = frozenset(
    [
        "+",
        "-",
        "−",
        "–",
        "*",
        "×",
        "·",
        "⋅",
        "/",
        "÷",
        "=",
        "<",
        ">",
        "≤",
        "≥",
        "≠",
        "∪",
        "∩",
        "U",
        "∈",
        "^",
        "±",
        "%",
        "≈",
        ":",
    ]
)
_JOINERS = frozenset({"and", "or", "and/or"})
_OF_ROOTS = frozenset(
    {"double", "triple", "twice", "root", "multiplicity", "(multiplicity", "(double)", "(twice)", "simple"}
)
_SKIPPED = frozenset({"the", "a", "also", "both", "either", "one"})
_APPROXIMATE = frozenset({"approximately", "about", "roughly", "approx", "around", "nearly", "≈", "approx."})
_BOUNDS = {
    ("at", "least"): r"\ge ", ("at", "most"): r"\le ", ("more", "than"): ">", ("less", "than"): "<", ("greater", "than"): ">",
    ("fewer", "than"): "<", ("no", "more"): r"\le ", ("no", "less"): r"\ge ",
}  # fmt: skip
_ASIDE = re.compile(
    r"[,;(]?\s*\b(?:because|since|for (?:instance|example)|e\.g\.|depending|where|as (?:we|one|can|is|was|shown|required)|which (?:can|follows|was)|when|"
    r"which (?:is|are) [^.$]{0,60}\b(?:more|less|greater|smaller|than)\b|instead of|rather than|not (?=\$?\d)|but not)\b"
)
_MIXED = re.compile(r"(?<![\d.,])(\d{1,9})\s+and\s+(?:a\s+)?(\d{1,9}\s*/\s*\d{1,9}|\$?\\[dt]?frac)")
_BOLD = re.compile(r"\\(?:textbf|mathbf|emph|underline)\s*\{([^{}]*)\}")
_INTEGERS = re.compile(r",?\s*+\b(?:where|for|with)\b(?:\s++\S++){0,3}?\s++integers?\b.{0,40}$", re.DOTALL)
_LETTER = re.compile(r"[B-HJ-Zb-z]'?(?:_\w+)?|[a-zA-Z]\([a-z]\)")


@dataclass
class _Run:
    pieces: list[str]
    joined: str = ""
    """By what it is joined to the run before: a comma, "and", "or", or nothing."""
    about: bool = False
    bound: str = ""

    @property
    def text(self) -> str:
        return self.bound + " ".join(self.pieces)


def formula(sentence: str) -> str | None:
    """None where the sentence states none, or only what it lies between."""
    sentence = _BOLD.sub(r"**\1**", _MIXED.sub(r"\1 \2", sentence))
    sentence = sentence.replace("with multiplicity", "multiplicity")
    sentence = _INTEGERS.sub("", sentence)
    aside = _ASIDE.search(sentence)
    if aside and _SIGNS.search(sentence[: aside.start()]) and sentence.count("$", 0, aside.start()) % 2 == 0:
        sentence = sentence[: aside.start()]
    runs = _runs(sentence)
    if not runs:
        return None
    exact = [run for run in runs if not run.about]
    if exact and runs[-1].about and not runs[-1].bound:
        runs = runs[: runs.index(exact[-1]) + 1]  # "√2, which is about 1.41"
    group = [runs[-1]]
    for run in reversed(runs[:-1]):
        if not group[0].joined:
            break
        group.insert(0, run)
    if re.search(rf"(?:\bnot|n't|\bnever)\s+[\s$]*{re.escape(group[0].pieces[0])}", sentence):
        return None
    if len(group) > 1 and re.search(rf"\bbetween\b[\s$]*{re.escape(group[0].pieces[0])}", sentence):
        return None
    return " ".join([group[0].text, *(f"{run.joined} {run.text}" for run in group[1:])])


def _runs(sentence: str) -> list[_Run]:
    runs: list[_Run] = []
    open_run: _Run | None = None
    joined, about, bound, loose = "", False, "", True
    words = ["", ""]
    for piece in _PIECE.findall(sentence):
        plain = piece.strip("*").rstrip(".,;:!?") if piece[:1] not in "$([" else piece.rstrip(".,;:!?")
        plain = piece.strip("*") if piece.startswith("**") else plain
        low = plain.lower()
        if _is_maths(plain, open_run is not None):
            if open_run is None:
                open_run = _Run([], "" if loose else joined, about, bound)
                runs.append(open_run)
            open_run.pieces.append(plain.rstrip(".,;:!?"))
            loose, joined, bound = False, "", ""
        else:
            open_run = None
            if low in _JOINERS:
                joined = "or" if low == "or" else joined if joined == "or" else "and"
            elif low not in _SKIPPED | _APPROXIMATE | _OF_ROOTS and plain:
                loose, joined = True, ""
                about = False
            about = about or low in _APPROXIMATE
            words = [words[1], low]
            bound = _BOUNDS.get((words[0], words[1]), bound if low in ("than", "about") else "")
        if piece[-1:] in ",;" and not (piece.startswith("$") and piece.endswith("$")):
            open_run = None
            joined = joined or ","
        elif piece[-1:] in ".:!?" and len(piece) > 1:
            open_run = None
    return [run for run in runs if _has_value(run)]


def _has_value(run: _Run) -> bool:
    return (
        any(_SIGNS.search(piece) or piece[:1] in "$\\([" for piece in run.pieces) and run.pieces[-1] not in _OPERATORS
    )


def _is_maths(piece: str, goes_on: bool) -> bool:
    if not piece:
        return False
    if piece[0] == "$" or piece.startswith((r"\(", r"\[")):
        return True
    if piece.startswith(tuple("([]")) and "," in piece:
        return bool(_SIGNS.search(piece)) or bool(re.fullmatch(r"[(\[][\sA-Za-z0-9,.-]+[)\]]", piece))
    if piece in _OPERATORS or _LETTER.fullmatch(piece):
        return True
    if piece.lower() in _OF_ROOTS:
        return True
    if _SIGNS.search(piece) and not re.match(r"[A-Za-z]{3,}[^(]", piece.lstrip("(\\")):
        return True
    return goes_on and (
        piece.lower() in ("percent", "square", "cubic", "per", "squared", "cubed", "degrees", "degree")
        or units.is_unit(piece)
    )
