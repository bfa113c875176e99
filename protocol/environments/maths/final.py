"""What a completion gives as its answer: the last box, or what its last sentence states.

Thoughts are scratch paper. Boxes of one sentence that commas, "and" or "or" join are one list, and so are the cases of "if … if …".
Without a box the last sentence that says something counts: its bold text, its formulas, or its numbers and their units.

A completion is a stranger's text and may be long. So a repetition that another one may take over from here takes all it can get and
gives nothing back (`\\s*+`; of groups that is wrong on early Pythons): no text makes a search take more than linear time (tests/protocol/test_regular_expressions.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.environments.maths import units
from protocol.environments.maths.words import NO_ANSWER

COMPLETION_MAX = 1 << 20
"""Characters that are looked at, from the end."""
_BOXES_MAX = 64
_BOX = re.compile(r"\\(?:boxed|fbox)\s*+(?:\{|(?=[0-9A-Za-z]))")
_CUE = re.compile(
    r"(?:####\s*+|(?:final\s++answer|\banswer|\bresult|\bsolution)\b(?:\s++(?:is|are|equals|to\b[^.:\n]{0,80}?\b(?:is|are)))?\s*+\**+\s*+[:=.]?+\s*+\**+[:=]?+\s*+)",
    re.IGNORECASE,
)
_JOINED = re.compile(
    r"(?P<signs>[\s$,;&]*+)(?P<words>(?:(?:and|or|\\text\s*+\{\s*+,?\s*+(?:and|or)\s*+\}|\\q?quad)[\s$,;]*+)*)(?:[A-Za-z](?:_\{?\w++\}?)?\s*+=)?[\s$]*+"
)
_NAMED = re.compile(r"(?<![\\A-Za-z)\]}'^])([A-Za-z](?:_\{?\w{1,5}\}?)?)\s*=\s*[\s$]*$")
_CASES = re.compile(r"\b(?:if|when|otherwise|else|alternatively|depending|or)\b", re.IGNORECASE)
_SENTENCE = re.compile(
    r"(?<=[.!?])(?<!\b[aApP]\.[mM]\.)(?<!i\.e\.)(?<!e\.g\.)(?<!approx\.)(?<![A-Z][a-z][a-z]\.)(?<!\.\.\.)\s+(?=[A-Z$\\(*#0-9-])|\n\s*\n"
)
_AFTER_BOX = re.compile(
    r"[\s$]*+(?:\\\)|\\\])?[\s$]*+(?P<unit>\\?%|percent\b|(?:\^?\{?\\circ\}?|°)\s*[CF]?|\\(?:text|mathrm)\{[^{}]*\}(?:\^\{?\d\}?)?|(?:square |cubic )?[A-Za-z]+(?:/[A-Za-z]+)?)"
)
_BULLET = re.compile(r"^[^\S\n]*+(?:[-*•]|\d++[.)])\s++(\S.*)", re.MULTILINE)
_HEADING = re.compile(r"\s*+(?:#++\s*+)?\**+\s*+(?:step|part|case)\s*+\d*+\s*+[.:)]?\s*+\**+\s*+", re.IGNORECASE)


@dataclass(frozen=True)
class FinalAnswer:
    """`text` is the answer, or the sentence that states it where it stood in no box."""

    text: str
    boxed: bool


def said(completion: str) -> FinalAnswer | None:
    """None for thoughts and boxes that never end, and for a completion that says nothing or is no text."""
    if not _is_text(completion):
        return None
    text = completion[-COMPLETION_MAX:]
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return None
    text = text.rpartition("<answer>")[2].partition("</answer>")[0]
    found = _boxes(text)
    if found is None:
        return None
    if found:
        return FinalAnswer(_of_boxes(text, found), True)
    return _stated(text)


def _is_text(completion: str) -> bool:
    try:
        completion.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def of_reference(reference: str) -> str:
    """A reference without a box around it."""
    found = _boxes(reference)
    return _of_boxes(reference, found) if found else reference.strip()


# ---- boxes -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Boxed:
    start: int
    end: int
    inside: str


def _boxes(text: str) -> list[_Boxed] | None:
    """The last boxes, in order; those within another are none of their own. None where the last one is never closed."""
    found: list[_Boxed] = []
    until, open_at = 0, -1
    for match in list(_BOX.finditer(text))[-_BOXES_MAX:]:
        if match.start() < until:
            continue
        if not match[0].endswith("{"):
            short = re.compile(r"\d+|[A-Za-z]").match(text, match.end())
            assert short is not None
            found.append(_Boxed(match.start(), short.end(), short[0]))
            continue
        end = _closed(text, match.end())
        if end is None:
            open_at = match.start()
            continue
        found.append(_Boxed(match.start(), end + 1, text[match.end() : end]))
        until = end
    return None if found and open_at > found[-1].start else found


def _closed(text: str, start: int) -> int | None:
    """Where the brace that was opened before `start` is closed."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start, start + 20_000):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.start()
    return None


def _of_boxes(text: str, found: list[_Boxed]) -> str:
    group = [found[-1]]
    kind = ""
    for box in reversed(found[:-1]):
        between = text[box.end : group[0].start]
        here = _how_joined(between)
        if not here or (kind and here != kind):
            break
        kind = here
        group.insert(0, box)
    named = [_with_name(text, box) for box in group]
    if len(group) == 1:
        return named[0] + _unit_after(text, group[0])
    return " , ".join(named)


def _how_joined(between: str) -> str:
    """ "list" for boxes that are one list, "cases" for answers to several cases; empty where the later one replaces the earlier."""
    if len(between) > 200:
        return ""
    joined = _JOINED.fullmatch(between.replace(r"\)", " ").replace(r"\(", " "))
    if joined and (joined["words"] or set(",;") & set(joined["signs"].rpartition("&")[2])):
        return "list"
    if re.search(r"[.!?]\s|\n\s*\n|\\\]", between):
        return ""
    return (
        "cases"
        if _CASES.search(between) and not re.search(r"\b(?:but|so|hence|which|instead|actually|no)\b", between)
        else ""
    )


def _with_name(text: str, box: _Boxed) -> str:
    inside = _BOX.sub("{", box.inside).strip()  # a box within it says nothing more
    match = _NAMED.search(text, max(0, box.start - 40), box.start)
    if (
        match
        and inside
        and "=" not in inside
        and match.end() == box.start
        and not re.match(r"\\[lg]e|[<>\\]\\?(?:in|ge|le|emptyset)", inside)
    ):
        return f"{match[1]} = {inside}"
    return inside


def _unit_after(text: str, box: _Boxed) -> str:
    match = _AFTER_BOX.match(text, box.end)
    if match is None or not re.search(r"\d[\s})$]*$", box.inside):
        return ""
    unit = match["unit"]
    word = re.sub(r"\\(?:text|mathrm)|[{}^\d]", " ", unit).split()
    if (unit[0] in "\\%°^" and not word[0].isalpha()) or unit == "percent":
        return " " + unit
    if word and all(
        units.is_unit(one) or one.lower() in ("square", "cubic") for one in re.split("[ /]", " ".join(word))
    ):
        return " " + (unit if unit.startswith("\\") else rf"\text{{ {unit} }}")
    return ""


# ---- sentences -------------------------------------------------------------------------------------------------------------


def _stated(text: str) -> FinalAnswer | None:
    text = text.strip()
    if not text:
        return None
    if len(text) < 200 and re.match(r"\(?[A-J]\s*[.):]\s+\S", text):  # "C. 15"
        return FinalAnswer(text, False)
    bullets = [one.rstrip() for one in _BULLET.findall(text)]
    lines = [line for line in text.splitlines() if line.strip()]
    cue = None
    for match in _CUE.finditer(text):
        cue = match
    if cue is not None and (
        cue[0].startswith("#") or re.search(r"[:=.#]|\b(?:is|are|equals)\b", cue[0], re.IGNORECASE)
    ):
        rest = text[cue.end() :].strip()
        if rest.strip("*_ $.:"):
            sentence = next((one for one in _SENTENCE.split(rest) if one and one.strip("*_ :")), "")
            return FinalAnswer(sentence.strip("*_ \n"), False)
    if len(bullets) > 1 and lines[-1].strip().endswith(bullets[-1]) and _all_bullets(lines, len(bullets)):
        return FinalAnswer(", ".join(one.strip(" .,;") for one in bullets), False)
    return _last_sentence(text)


def _all_bullets(lines: list[str], many: int) -> bool:
    return all(re.match(r"\s*+(?:[-*•]|\d++[.)])\s", line) for line in lines[-many:])


def _last_sentence(text: str) -> FinalAnswer | None:
    sentences = [one.strip() for one in _SENTENCE.split(text[-4000:]) if one and one.strip()]
    for sentence in reversed(sentences[-3:]):
        for line in reversed(
            [one for one in sentence.splitlines() if one.strip()] if "$$" not in sentence else [sentence]
        ):
            if NO_ANSWER.search(line) or _HEADING.fullmatch(line):
                return None
            if re.search(
                r"[0-9$\\=<>√π∞∅]|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|\w+teen|\w+ty|hundred|half|third|quarter)\b",
                line,
            ):
                return FinalAnswer(line.strip(), False)
    return FinalAnswer(sentences[-1], False) if sentences else None
