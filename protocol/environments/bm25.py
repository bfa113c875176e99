"""Which documents of a corpus a query finds: BM25 in whole numbers, so that every machine finds the same ones in the same order.

The score of a document is the sum, over the different terms of the query that it holds, of

    idf · (k₁ + 1) · tf / (tf + k₁ · (1 − b + b · length / mean length)),    k₁ = 6/5, b = 3/4,    idf = log₂((2N + 2) / (2n + 1)),

n of N documents holding the term (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; the idf is
Lucene's, doubled within and to the base of 2). idf is rounded down to a multiple of 2⁻¹⁶, and so is each summand, which is never less
than 2⁻¹⁶; above TF_MAX a term counts no more. Of equal scores the earlier document comes first.

A term is a run of ASCII letters and digits, in lower case, and of bytes ≥ 128 of UTF-8: no table of Unicode decides, which differs
between versions of Python. Nothing is stemmed, no word left out.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError

DOCUMENTS_MAX = 1 << 18
"""Of one corpus. Changing it breaks: the order of documents shares a number of 64 bits with the score."""
CORPUS_BYTES_MAX = 32 << 20
"""UTF-8 bytes of all documents."""
TERMS_MAX = 1 << 21
"""Different ones in one corpus."""
TF_MAX = 255
"""Changing it breaks: what a query finds, where a term stands in a document more often."""
_FRACTION_BITS = 16
_TERM = re.compile(rb"[a-z0-9\x80-\xff]+")


def terms(text: str) -> list[bytes]:
    """In order, repeated ones too. Of half a surrogate pair nothing is left."""
    return _TERM.findall(text.encode("utf-8", "ignore").lower())


class Index:
    """Where each term stands. Raises ConfigError for a corpus above the limits."""

    def __init__(self, documents: Iterable[str]) -> None:
        self._numbers: dict[bytes, int] = {}
        lengths, of_terms, places, counts = array("q"), array("i"), array("i"), array("q")
        size = 0
        for place, text in enumerate(documents):
            size += len(text.encode("utf-8", "ignore"))
            found = Counter(terms(text))
            lengths.append(found.total())
            of_terms.extend([self._numbers.setdefault(term, len(self._numbers)) for term in found])
            places.extend([place] * len(found))
            counts.extend(found.values())
            _require_small(place + 1, size, len(self._numbers))
        self._size = len(lengths)
        order = np.argsort(np.frombuffer(of_terms, np.int32), kind="stable")
        by_term = np.frombuffer(of_terms, np.int32)[order]
        self._starts = np.searchsorted(by_term, np.arange(len(self._numbers) + 1))
        self._places = np.frombuffer(places, np.int32)[order]
        self._weights = _weights(
            np.frombuffer(counts, np.int64)[order],
            np.frombuffer(lengths, np.int64),
            self._places,
            by_term,
            self._starts,
        )

    def search(self, query: str, most: int) -> list[int]:
        """Numbers of at most so many documents that hold a term of the query, the best first."""
        scores = np.zeros(self._size, np.int64)
        for term in dict.fromkeys(terms(query)):
            number = self._numbers.get(term)
            if number is not None:
                start, end = self._starts[number : number + 2]
                scores[self._places[start:end]] += self._weights[start:end]  # each document once
        (found,) = np.nonzero(scores)
        ranks = scores[found] * DOCUMENTS_MAX + (DOCUMENTS_MAX - 1 - found)  # no two alike
        if len(ranks) > most:
            ranks = np.partition(ranks, len(ranks) - most)[-most:]
        return [DOCUMENTS_MAX - 1 - int(rank) % DOCUMENTS_MAX for rank in np.sort(ranks)[::-1]]


def _require_small(documents: int, size: int, different: int) -> None:
    limits = {"documents": DOCUMENTS_MAX, "bytes": CORPUS_BYTES_MAX, "different terms": TERMS_MAX}
    for (what, most), found in zip(limits.items(), (documents, size, different), strict=True):
        if found > most:
            raise ConfigError(
                f"a corpus may have {most} {what}, and this one has more", hint="search in fewer documents"
            )


def _weights(
    counts: NDArray[np.int64], lengths: NDArray[np.int64], places: NDArray[np.int32], by_term: NDArray[np.int32],
    starts: NDArray[np.intp],
) -> NDArray[np.int64]:  # fmt: skip
    """What each term adds to the score of each document that holds it, in 2⁻¹⁶. Below 2⁶² throughout: see the limits."""
    documents, total = len(lengths), int(lengths.sum())
    held = np.diff(starts)
    counts_held, which = np.unique(held, return_inverse=True)
    idf = np.array([log2(2 * documents + 2, 2 * int(count) + 1) for count in counts_held], np.int64)[which]
    tf = np.minimum(counts, TF_MAX)
    share = 10 * tf * total + 3 * total + 9 * lengths[places] * documents  # all times 10 · total, so that it is whole
    return np.maximum(1, idf[by_term] * (22 * tf * total) // share)


def log2(numerator: int, denominator: int) -> int:
    """Of a fraction ≥ 1, in 2⁻¹⁶, rounded down; by squaring 64 bits, a bit of the result each time."""
    whole = (numerator // denominator).bit_length() - 1
    part = (numerator << 64) // (denominator << whole)  # in [1, 2), times 2⁶⁴
    found = whole
    for _ in range(_FRACTION_BITS):
        part = part * part >> 64
        above = part >> 65
        part >>= above
        found = 2 * found + above
    return found
