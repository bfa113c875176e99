"""Whether a training question is one of the held-out ones, word for word or nearly: by n-grams of words.

A question is taken for a held-out one where at least half of that one's 8-grams stand in it. Words are runs of letters and digits, case aside, so
neither white space nor LaTeX's signs hide anything.

- **8 words**, as s1 (arXiv 2501.19393) and open-r1's decontamination have it. 13 (GPT-3, arXiv 2005.14165) is more than many a problem of
  mathematics has.
- **Half of them**, not one: "find the number of positive integers n such that" is eight words of a thousand problems. A copy with other numbers
  keeps about half; a reworded one is not found by any n-gram.
- **Of the held-out question's**: a training prompt may say much besides, before and after.
- 8-grams of more than two and of more than 1 % of the held-out questions are a prompt's wording, and count for none of them.
- Questions of none but such wording are compared whole.
- Questions of fewer than 8 words are looked for whole too, and as a run of words and signs within longer ones, whose wrapper says something
  else. Signs count there ("2 + 3" is not "2 - 3"); punctuation, dollars, braces and LaTeX's spacing do not. A run that a formula goes on from,
  as "2 + 3" in "2 + 3 * 4", is another question. Below 5 words and signs, or 4 with a number among them, no run is looked for, nor one
  of common wording alone: "find the value of x" would be found everywhere.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter

WORDS = 8
SHARE = 0.5
_WORDING_LEAST, _WORDING_SHARE = 2, 0.01
_WORD = re.compile(r"[^\W_]+")
_RUN_LEAST, _RUN_LEAST_WITH_NUMBER = 5, 4
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![a-z])|\\[()\[\],;:! ]|\\[dt](?=frac|binom)|~")
_SIGNS = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|[^\w\s.,:;?!\"'`$\\{}*]|\*(?!\*)(?<!\*\*)")
_GOES_ON = frozenset("+-*/^=<>|%−×÷·≤≥")
_WORDING = frozenset(
    [
        "find",
        "solve",
        "compute",
        "evaluate",
        "calculate",
        "determine",
        "simplify",
        "factor",
        "expand",
        "prove",
        "show",
        "state",
        "give",
        "write",
        "what",
        "which",
        "how",
        "many",
        "much",
        "the",
        "value",
        "values",
        "for",
        "and",
        "all",
        "real",
        "integer",
        "positive",
        "number",
        "numbers",
        "expression",
        "equation",
        "following",
        "function",
        "area",
        "length",
        "measure",
        "angle",
        "sum",
        "product",
        "answer",
        "solution",
        "solutions",
        "are",
        "does",
        "let",
        "that",
        "such",
        "given",
        "this",
        "its",
    ]
)
_LETTERS = frozenset("bcdefghjklmnopqrstuvwxyz")  # all but those that are words


def key_of(text: str) -> int:
    """128 bits of a question, white space, case and dollars aside."""
    plain = "".join(text.casefold().split()).replace("$", "").rstrip(".")
    return int.from_bytes(hashlib.blake2b(plain.encode(errors="surrogatepass"), digest_size=16).digest(), "big")


class HeldOut:
    """Held-out questions, about 200 bytes of memory for each word of them."""

    def __init__(self) -> None:
        self._whole: set[int] = set()
        self._questions: list[set[int]] = []
        self._grams: dict[int, tuple[int, ...]] = {}
        self._counts: list[int] = []
        self._runs: dict[tuple[str, ...], list[list[str]]] = {}

    def __len__(self) -> int:
        return len(self._questions)

    def add(self, question: str) -> None:
        self._whole.add(key_of(question))
        grams = _grams(question)
        self._questions.append(grams)
        self._counts = []
        if not grams:
            signs = _signs(question)
            if _says_something(signs):
                self._runs.setdefault(tuple(signs[:_RUN_LEAST_WITH_NUMBER]), []).append(signs)

    def holds(self, question: str) -> bool:
        """Whether this is one of them."""
        if not self._questions:
            return False
        if not self._counts:
            self._index()
        if key_of(question) in self._whole:
            return True
        found = Counter(number for gram in _grams(question) for number in self._grams.get(gram, ()))
        return any(count >= SHARE * self._counts[number] for number, count in found.items())

    def holds_short(self, question: str) -> bool:
        """Whether one of fewer than 8 words stands in it as it is, with something before or after."""
        if not self._runs:
            return False
        signs = _signs(question)
        starts = list(zip(*(signs[at:] for at in range(_RUN_LEAST_WITH_NUMBER)), strict=False))
        if self._runs.keys().isdisjoint(starts):
            return False
        return any(
            signs[at : at + len(run)] == run and not _goes_on(signs, at, at + len(run))
            for at, start in enumerate(starts)
            for run in self._runs.get(start, ())
        )

    def _index(self) -> None:
        most = max(_WORDING_LEAST, _WORDING_SHARE * len(self._questions))
        often = Counter(gram for grams in self._questions for gram in grams)
        self._grams = {}
        for number, grams in enumerate(self._questions):
            own = [gram for gram in grams if often[gram] <= most]
            self._counts.append(len(own))
            alone = (number,)  # one object for all of them: there are many
            for gram in own:
                self._grams[gram] = (*self._grams[gram], number) if gram in self._grams else alone


def _grams(text: str) -> set[int]:
    """Hashes of the text's 8-grams, of 64 bits; they differ from process to process."""
    words = _WORD.findall(text.casefold())
    return set(map(hash, zip(*(words[start:] for start in range(WORDS)), strict=False)))


def _signs(text: str) -> list[str]:
    """Words, numbers and the signs of formulas, in order."""
    found = _LAYOUT.sub(" ", text.casefold()) if "\\" in text or "~" in text else text.casefold()
    return _SIGNS.findall(found)


def _goes_on(signs: list[str], begin: int, end: int) -> bool:
    """Whether a formula reaches into signs[begin:end], or out of it. A dash before a word is none."""
    before, after = signs[begin - 1 : begin], signs[end : end + 2]
    into = bool(before) and before[0] in _GOES_ON and not _is_word(signs[begin])
    if not after:
        return into
    multiplied = after[0] in _LETTERS and not _is_word(signs[end - 1])
    return into or multiplied or (len(after) == 2 and after[0] in _GOES_ON and not _is_word(after[1]))


def _says_something(signs: list[str]) -> bool:
    """Whether it is long enough, and more than wording that other questions share."""
    if any(one[0].isdigit() for one in signs):
        return len(signs) >= _RUN_LEAST_WITH_NUMBER
    own = [one for one in signs if one in _GOES_ON or (_is_word(one) and one not in _WORDING)]
    return len(signs) >= _RUN_LEAST and (len(own) >= 2 or not _GOES_ON.isdisjoint(own))


def _is_word(sign: str) -> bool:
    return len(sign) > 2 and sign.isalpha()
