"""Answers that are no expression: a letter of a choice, a time of day, a date, a word; and numbers in words."""

from __future__ import annotations

import re
from dataclasses import dataclass

# ---- numbers in words ------------------------------------------------------------------------------------------------------

_ONES = dict(
    zip(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ],
        range(20),
        strict=True,
    )
)
_TENS = dict(
    zip(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], range(20, 100, 10), strict=True)
)
_LARGE = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "eleventh": 11, "twelfth": 12, "hundredth": 100,
}  # fmt: skip
_SMALL = "|".join([*_ONES, *_TENS])
_SPELLED = re.compile(
    rf"(?<![A-Za-z\\])(?:{_SMALL})(?:(?:[ -]| and |-and-)(?:{_SMALL}|{'|'.join(_LARGE)}))*(?![A-Za-z])(?:[ -]({'|'.join(_PARTS)})s?(?![A-Za-z]))?",
    re.IGNORECASE,
)


def with_digits(text: str) -> str:
    """The text with numbers in digits: `seventeen` is 17, `five ninths` 5/9."""
    return _SPELLED.sub(
        _digits, re.sub(r"(?i)(?<![A-Za-z])(?:a|one) (half|third|quarter)(?![A-Za-z])", r"one \1", text)
    )


def _digits(match: re.Match[str]) -> str:
    words = re.split(r"[ -]+", match[0].lower())
    part = _PARTS.get(match[1].lower()) if match[1] else None
    words = words[:-1] if part else words
    total = current = 0
    before = 0
    for word in words:
        if word == "and":
            continue
        value = _ONES.get(word, _TENS.get(word, 0))
        if word in _LARGE:
            current = max(current, 1) * _LARGE[word]
            if word != "hundred":
                total, current = total + current, 0
        elif before and not (before >= 20 and before % 10 == 0 and 0 < value < 10):
            return match[0]  # "two three": no number
        else:
            current += value
        before = 0 if word in _LARGE else value
    return f"{total + current}/{part}" if part else str(total + current)


# ---- multiple choice -------------------------------------------------------------------------------------------------------

_LETTER = r"[A-J]"
_CHOICE = re.compile(
    rf"\s*+(?:option|choice|answer)?\s*+\(?\s*+({_LETTER}|[a-j](?=\s*+\)|$))\s*+\)?\s*(?:$|(?<=[)])|[.:]\s)",
    re.IGNORECASE,
)
_LISTED = re.compile(rf"\s*\(?({_LETTER})\)?(?:\s*(?:,|;|and|or|&|\s)\s*(?:and\s+|or\s+)?\(?({_LETTER})\)?)*\s*\.?\s*")
_ALONE = re.compile(rf"(?<![A-Za-z\\'’$=+*/^_-])\(?({_LETTER})\)?(?![A-Za-z'’=+*/^_]|\s*[=+*/^]|-\w)")
_ARTICLE = re.compile(
    r"(?:^|(?<=[.!?:]\s))A(?=\s+(?!(?:is|and|or|are|because|since|holds|works|as)\b)[a-z])|(?<=\s)I(?=\s+[a-z'])|^I(?=[\s'])"
)
_LOWER = re.compile(r"(?:answer|option|choice)(?:\s+is)?[\s:]*\(?([a-j])\)?(?![A-Za-z])|\(([a-j])\)")


def choice(text: str) -> frozenset[str] | None:
    """Letters that a reference or a boxed answer chooses; None where it is no choice."""
    plain = re.sub(r"[\"{}*$]", " ", text).strip()
    if re.fullmatch(rf"{_LETTER}{{2,6}}", plain) and len(set(plain)) == len(plain):
        return frozenset(plain)
    if _LISTED.fullmatch(plain):
        return frozenset(re.findall(_LETTER, re.sub("and|or", " ", plain)))
    match = _CHOICE.match(plain)
    if match is None:
        return None
    if plain[: match.end()].strip().islower() and not plain.strip().startswith("(") and len(plain.strip()) > 1:
        return None
    return frozenset({match[1].upper()})


def chosen(sentence: str) -> frozenset[str]:
    """Letters that a sentence chooses."""
    plain = re.sub(r"\\[()\[\]]|[\"{}*$]|\\(?:text|textbf|mathrm|mathbf)", " ", sentence)
    whole = choice(plain.strip(" ."))
    if whole:
        return whole
    clause = re.split(r"\b(?:because|since|while|whereas|although|as|for|but not|and not|not)\b", plain)[0]
    clause = _ARTICLE.sub(" ", clause)
    if re.search(r"\b(?:wrong|incorrect|excluded|ruled out|fails?|false)\b", clause):
        return frozenset()
    letters = _ALONE.findall(clause)
    if letters:
        return frozenset(letters)
    return frozenset(one.upper() for pair in _LOWER.findall(clause) for one in pair if one)


# ---- times and dates -------------------------------------------------------------------------------------------------------

_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if len(name) > 3 else name for name in _MONTHS) + "|sept"
_CLOCK = re.compile(
    r"(?<![\d:])([01]?\d|2[0-4])(?::([0-5]\d)(?::([0-5]\d))?)?\s*(?:(a|p)\s?\.?\s?m\b\.?|(o'?clock|hours|h\b))?(?![\d:])",
    re.IGNORECASE,
)
_DATES = (
    re.compile(r"(?<!\d)(?P<y>\d{4})[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})(?!\d)"),
    re.compile(
        rf"(?P<n>{_MONTH})\b\.?\s+(?:the\s+)?(?P<d>\d{{1,2}})(?:st|nd|rd|th)?(?!\d)(?:,?\s+(?P<y>\d{{4}}))?",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?<!\d)(?P<d>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<n>{_MONTH})\b\.?(?:,?\s+(?P<y>\d{{4}}))?",
        re.IGNORECASE,
    ),
    re.compile(r"(?<!\d)(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})(?!\d)"),
)


@dataclass(frozen=True)
class Moment:
    """A time of day in seconds, or a date (year, month, day) with 0 for a year that is not said."""

    seconds: int | None = None
    date: tuple[int, int, int] | None = None


def moments(text: str, *, whole: bool) -> list[Moment]:
    """Times and dates in a text; where it must be one as a whole, at most that one."""
    text = re.sub(r"\s*(:)\s*(?=\d)", r"\1", re.sub(r"[\"{}*$]|\\[,;: ]|\\text", " ", text))
    text = " ".join(text.split()).strip(" .") if whole else text
    found = [
        Moment(date=date) for pattern in _DATES for match in _matches(pattern, text, whole) if (date := _date(match))
    ]
    if found:
        return found[-1:]
    special = re.search(r"\b(noon|midday|midnight)\b", text, re.IGNORECASE)
    if special and (not whole or re.fullmatch(r"(12(:00)?\s+)?\w+", text)):
        return [Moment(0 if special[1].lower() == "midnight" else 43_200)]
    return [Moment(time) for match in _matches(_CLOCK, text, whole) if (time := _time(match)) is not None]


def _matches(pattern: re.Pattern[str], text: str, whole: bool) -> list[re.Match[str]]:
    if whole:
        match = pattern.fullmatch(text)
        return [match] if match else []
    return list(pattern.finditer(text))


def _time(match: re.Match[str]) -> int | None:
    hours, minutes, seconds, half, clock = match.groups()
    if minutes is None and half is None and (clock is None or not clock.lower().startswith("o")):
        return None
    hour = int(hours)
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half.lower() == "p" else 0)
    return (hour * 3600 + int(minutes or 0) * 60 + int(seconds or 0)) % 86_400


def _date(match: re.Match[str]) -> tuple[int, int, int] | None:
    parts = match.groupdict()
    if parts.get("n"):
        month = next(place for place, name in enumerate(_MONTHS, 1) if name.startswith(parts["n"].lower()[:3]))
    else:
        month = int(parts["m"])
    day = int(parts["d"])
    return (int(parts["y"] or 0), month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None


# ---- words -----------------------------------------------------------------------------------------------------------------

_LATEX = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|operatorname|mbox|emph|boxed)\b|\\[,;:!() \[\]]|[{}$*_\"`~]"
)
_FILLERS = frozenset(
    {
        "a",
        "an",
        "the",
        "is",
        "are",
        "it",
        "there",
        "that",
        "this",
        "and",
        "so",
        "therefore",
        "thus",
        "hence",
        "answer",
        "be",
        "will",
    }
)
_NEGATIONS = frozenset({"not", "no", "non", "never", "neither", "nor", "isn't", "aren't", "cannot", "without", "n't"})
_VERDICTS = frozenset({"yes", "no", "true", "false"})
_BETWEEN = frozenset({"or", "and", "nor", "either", "neither", "/", "both"})
EMPTY = re.compile(
    r"\b(?:no|not any|zero) (?:real )?solutions?\b|\bempty set\b|\bno such (?:\w+ )?(?:exists?)?|\bno (?:real )?(?:roots?|values?)\b|"
    r"\bhas none\b|\bunsolvable\b",
    re.IGNORECASE,
)
ALL_REAL = re.compile(
    r"\ball (?:real numbers|reals|real \w+|\w+ in R)\b|\bevery real number\b|\ball real\b", re.IGNORECASE
)
NO_ANSWER = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|unable to|impossible to|do not|don't|did not) (?:be )?(?:know\w*|determined?|solved?|say|tell|find|found|"
    r"figure|answer|decide|give|prove|compute|conclude)\b|\bleave (?:the|this|it)\b.*\bopen\b|\bnot enough information\b|\bundetermined\b|"
    r"\bgive up\b|\bno idea\b|\bnot sure (?:how|what|which)\b|\binsufficient information\b|\bdoes(?: not|n't) (?:say|specify)\b|\bdepends? on\b",
    re.IGNORECASE,
)


def tokens(text: str) -> list[str]:
    """Words and numbers of a text in lower case, without its notation."""
    return re.findall(r"[a-z]+(?:['’][a-z]+)?|\d+(?:\.\d+)?|/", _LATEX.sub(" ", text).lower())


def is_wordy(text: str) -> bool:
    """Whether a reference is words alone."""
    plain = _LATEX.sub(" ", text).strip(" .")
    return bool(re.fullmatch(r"[A-Za-z][A-Za-z'’ ,-]*[A-Za-z]", plain)) and any(len(word) > 1 for word in plain.split())


def same_words(reference: str, answer: str, *, boxed: bool) -> bool:
    """Whether an answer says the reference's words: all of it, its beginning or its end, neither negated nor beside another."""
    wanted = [word for word in tokens(reference) if word not in _FILLERS] or tokens(reference)
    given = tokens(answer)
    short = [word for word in given if word not in _FILLERS]
    if wanted in (short, given):
        return True
    if wanted[0] in _VERDICTS and len(wanted) == 1 and given and given[0] in _VERDICTS:
        return given[0] == wanted[0] and not (len(given) > 2 and given[1] in ("and", "or") and given[2] in _VERDICTS)
    if not boxed:
        answer = _without_aside(re.split(r"\b(?:so|hence|thus|therefore|but|which means)\b(?=.*\w)", answer)[-1])
        given = tokens(answer)
        short = [word for word in given if word not in _FILLERS]
    size = len(wanted)
    places = [at for at in range(len(short) - size + 1) if short[at : at + size] == wanted]
    for at in places:
        before, after = short[at - 1] if at else "", short[at + size] if at + size < len(short) else ""
        joined = any(word in _BETWEEN for word in _around(given, wanted))
        if before in _NEGATIONS or (joined and _is_alternative(given, wanted)) or after in ("or", "nor"):
            continue
        says = boxed or bool(_predicate(answer)) or len(short) <= size + 2  # "Ben has more than Anna" does not say Anna
        if at == 0 or (at + size == len(short) and says) or (boxed and len(short) <= size + 3):
            return True
        if not boxed and _predicate(answer)[:size] == wanted:
            return True
    return not boxed and _predicate(answer)[:size] == wanted and not _is_alternative(given, wanted)


def _without_aside(sentence: str) -> str:
    """The sentence up to the comma after its last verb."""
    verbs = list(re.finditer(r"\b(?:is|are|be|was|were)\b", sentence))
    return sentence[: verbs[-1].end()] + sentence[verbs[-1].end() :].partition(",")[0] if verbs else sentence


def _around(given: list[str], wanted: list[str]) -> list[str]:
    if wanted[0] not in given:
        return []
    at = given.index(wanted[0])
    return given[max(0, at - 1) : at] + given[at + len(wanted) : at + len(wanted) + 1]


def _is_alternative(given: list[str], wanted: list[str]) -> bool:
    """Whether another short word is offered beside it: yes and no, odd or even."""
    around = _around(given, wanted)
    return any(word in ("or", "and", "nor", "/") for word in around) and len(given) <= len(wanted) + 6


def _predicate(sentence: str) -> list[str]:
    """Words after the last verb that says what something is."""
    parts = re.split(r"\b(?:is|are|be|was|were|becomes|called|being)\b|:", _LATEX.sub(" ", sentence))
    return [word for word in tokens(parts[-1]) if word not in _FILLERS] if len(parts) > 1 else []
