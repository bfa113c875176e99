"""The TOPLOC codec: format, strict parsing, scoring."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import toploc
from protocol.constants import TOPLOC_CHUNK, TOPLOC_FIELD, TOPLOC_K
from protocol.errors import Malformed, MurmurationError
from tests.protocol.patterns import competing, drawn


def rows(tokens: int, hidden: int, seed: int = 0) -> toploc.Bits:
    values = np.random.default_rng(seed).standard_normal((tokens, hidden)).astype(np.float32)
    return toploc.bf16_bits(values * 3)


@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 63, 64, 65])
@pytest.mark.parametrize("hidden", [16, 128, 1024])
def test_ones_own_proofs_match_exactly(tokens: int, hidden: int) -> None:
    own = rows(tokens, hidden)
    proofs = toploc.prove([own])[0]
    assert len(proofs) == toploc.chunk_count(tokens)
    for score in toploc.score([own], [proofs])[0]:
        assert (score.exponents, score.signs, score.mantissa_mean, score.mantissa_median) == (0, 0, 0.0, 0.0)


def test_a_full_chunk_takes_258_bytes() -> None:
    assert [len(p) for p in toploc.prove([rows(32, 128)])[0]] == [258]


def test_a_short_chunk_remembers_no_more_than_it_has() -> None:
    assert [len(p) for p in toploc.prove([rows(1, 50)])[0]] == [2 + 2 * 50]


@pytest.mark.parametrize(("tokens", "hidden"), [(1, 1), (1, 2), (3, 5), (1, 127), (1, 128), (32, 1024), (32, 4096)])
def test_the_polynomial_goes_through_the_points(tokens: int, hidden: int) -> None:
    """By the definition, in Python's integers."""
    flat = [int(pattern) for pattern in rows(tokens, hidden).reshape(-1)]
    points = sorted(range(len(flat)), key=lambda i: (-(flat[i] & 0x7FFF), i))[:TOPLOC_K]
    words = np.frombuffer(toploc.prove([rows(tokens, hidden)])[0][0], ">u2").tolist()
    modulus, coefficients = words[0], words[1:]
    assert modulus == next(m for m in range(TOPLOC_FIELD, 0, -1) if len({i % m for i in points}) == len(points))
    assert len(coefficients) == len(points)
    for i in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (i % modulus) + coefficient) % TOPLOC_FIELD
        assert value == flat[i] % TOPLOC_FIELD


@given(st.integers(1, TOPLOC_K), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=50)
def test_field_arithmetic_is_exact(k: int, seed: int, extreme: bool) -> None:
    random = np.random.default_rng(seed)
    lowest = TOPLOC_FIELD - 2 if extreme else 0
    x, c = random.integers(lowest, TOPLOC_FIELD, (2, 5)), random.integers(lowest, TOPLOC_FIELD, (2, k))
    expected = [
        [sum(int(a) * pow(int(p), j, TOPLOC_FIELD) for j, a in enumerate(c[b])) % TOPLOC_FIELD for p in x[b]]
        for b in range(2)
    ]
    assert toploc._evaluate(c, x).tolist() == expected
    points = np.stack([random.choice(TOPLOC_FIELD, k, replace=False) for _ in range(2)])
    points[0] = np.arange(TOPLOC_FIELD - k, TOPLOC_FIELD)
    assert (toploc._interpolate(points, toploc._evaluate(c, points)) == c).all()


def test_colliding_indices_get_a_smaller_modulus() -> None:
    own = np.zeros((32, 4096), np.uint16)
    flat = own.reshape(-1)
    flat[:: len(flat) // 200] = 0x4000  # some large values, two of which collide mod 65497
    flat[5] = flat[5 + TOPLOC_FIELD] = 0x7F00
    proof = toploc.prove([own])[0][0]
    modulus, _ = toploc.parse(proof, own.size)
    assert modulus < TOPLOC_FIELD
    assert toploc.score([own], [[proof]])[0][0].exponents == 0


def test_ties_go_to_the_lowest_index() -> None:
    chunk = np.full((1, 1000), 0x3F80, np.uint16)
    indices, values = toploc.largest(chunk)
    assert indices[0].tolist() == list(range(TOPLOC_K))
    assert (values == 0x3F80).all()


@given(st.integers(1, 5000), st.integers(1, 0x7FFF), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=200)
def test_the_largest_are_the_first_in_a_full_sort(size: int, levels: int, seed: int, column: bool) -> None:
    """Few levels make many ties; a large column is what hidden states of real models have."""
    chunks = np.random.default_rng(seed).integers(0, levels, (2, size)).astype(np.uint16)
    chunks[1] |= 0x8000
    if column:
        chunks[:, :: max(1, size // 32)] |= 0x7F00
    indices, values = toploc.largest(chunks)
    for chunk, found, patterns in zip(chunks, indices, values, strict=True):
        magnitudes = (chunk & 0x7FFF).tolist()
        order = sorted(range(size), key=lambda i: (-magnitudes[i], i))
        assert found.tolist() == sorted(order[:TOPLOC_K])
        assert (patterns == chunk[found]).all()


@given(st.integers(1, 32), st.sampled_from([16, 200, 2048, 4096]), st.integers(1, 0x7F80), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_a_proof_of_any_k_largest_is_read_but_for_the_places_that_equals_compete_for(
    tokens: int, hidden: int, levels: int, seed: int
) -> None:
    """As others may make it who take other equals than those of the lowest index: theirs is the same, byte for byte, wherever nothing ties there."""
    chunk = drawn(tokens, hidden, levels, seed)
    flat, random = chunk.reshape(-1), np.random.default_rng(seed)
    by_magnitude = np.lexsort((random.permutation(flat.size), -(flat & 0x7FFF).astype(np.int64)))
    taken = np.sort(by_magnitude[:TOPLOC_K])
    [foreign] = toploc.encode(taken[None], flat[taken][None])
    [[score]] = toploc.score([chunk], [[foreign]])
    assert max(score.exponents, score.signs) <= competing(chunk)
    if competing(chunk) == 0:
        assert [[foreign]] == toploc.prove([chunk])


def test_the_layout_of_the_activations_does_not_matter() -> None:
    own = rows(40, 96)
    wide = np.repeat(own, 2, axis=1)[:, ::2]
    assert not wide.flags.c_contiguous
    assert toploc.prove([wide, np.asfortranarray(own)]) == toploc.prove([own, own])
    assert toploc.score([wide], toploc.prove([own])) == toploc.score([own], toploc.prove([own]))


def test_another_models_states_do_not_pass() -> None:
    proofs = toploc.prove([rows(64, 512, seed=1)])[0]
    for score in toploc.score([rows(64, 512, seed=2)], [proofs])[0]:
        assert score.exponents > 0.5 * score.k


def test_flipped_signs_are_counted() -> None:
    own = rows(32, 256)
    proof = toploc.prove([own])[0]
    score = toploc.score([own ^ 0x8000], [proof])[0][0]
    assert (score.signs, score.exponents) == (TOPLOC_K, 0)


def test_small_errors_show_in_the_mantissa_only() -> None:
    values = np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32) * 3
    proofs = toploc.prove([toploc.bf16_bits(values)])[0]
    score = toploc.score([toploc.bf16_bits(values * np.float32(1.004))], [proofs])[0][0]
    assert 0 < score.mantissa_mean < 4
    assert score.exponents < 0.05 * score.k


def test_the_median_is_the_upper_of_two_in_the_middle() -> None:
    """As the published package has it in C++; its Python takes the mean of both."""
    own = np.array([[0x4000, 0x4100, 0x4200, 0x4300]], np.uint16)
    score = toploc.score([own + np.array([0, 5, 1, 9], np.uint16)], toploc.prove([own]))[0][0]
    assert (score.mantissa_median, score.mantissa_mean) == (5.0, 3.75)


def test_mantissas_count_where_exponents_agree() -> None:
    own = np.array([[0x4000, 0x4100, 0x4200, 0x4300]], np.uint16)
    score = toploc.score([own + np.array([0x80, 5, 1, 0x80], np.uint16)], toploc.prove([own]))[0][0]
    assert (score.exponents, score.mantissa_median, score.mantissa_mean) == (2, 5.0, 3.0)
    none = toploc.score([own + np.uint16(0x80)], toploc.prove([own]))[0][0]
    assert (none.exponents, none.mantissa_median, none.mantissa_mean) == (4, np.inf, np.inf)


@pytest.mark.parametrize("pattern", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
@pytest.mark.parametrize("tokens", [1, 33])
def test_patterns_that_are_no_numbers_are_refused_on_either_side(pattern: int, tokens: int) -> None:
    own = rows(tokens, 64)
    proofs = toploc.prove([own])
    own[-1, 7] = pattern
    with pytest.raises(ValueError, match="NaN or infinity"):
        toploc.prove([own])
    with pytest.raises(ValueError, match="NaN or infinity"):
        toploc.score([own], proofs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
def test_no_proof_is_made_of_what_is_not_finite(value: float) -> None:
    values = np.ones((1, 4), np.float32)
    values[0, 2] = value
    with pytest.raises(ValueError, match=r"NaN|overflow"):
        toploc.bf16_bits(values)


def test_rounding_to_bf16_is_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -1.00390625], np.float32)  # ties between two bf16 values
    assert toploc.bf16_bits(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xBF80]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_missing_and_extra_proofs_are_malformed(count: int) -> None:
    own = rows(64, 128)
    proofs = (toploc.prove([own])[0] * 2)[:count]
    with pytest.raises(Malformed, match="which need 2"):
        toploc.score([own], [proofs])


def malformed() -> list[tuple[str, bytes]]:
    good = toploc.prove([rows(32, 128)])[0][0]
    return [
        ("empty", b""),
        ("short", good[:-2]),
        ("long", good + b"\x00\x00"),
        ("modulus zero", bytes(2) + good[2:]),
        ("modulus of the hidden size", (128).to_bytes(2, "big") + good[2:]),
        ("modulus above the field", (65498).to_bytes(2, "big") + good[2:]),
        ("coefficient outside the field", good[:-2] + b"\xff\xff"),
        ("all zero", bytes(258)),
    ]


@pytest.mark.parametrize(("name", "proof"), malformed(), ids=lambda value: value if isinstance(value, str) else "")
def test_malformed_proofs_are_refused(name: str, proof: bytes) -> None:
    with pytest.raises(Malformed):
        toploc.score([rows(32, 128)], [[proof]])


def test_a_malformed_proof_is_refused_before_any_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [rows(64, 128), rows(33, 128)]
    proofs = toploc.prove(own)
    for arithmetic in ("largest", "_evaluate", "_compare"):
        monkeypatch.setattr(toploc, arithmetic, None)
    for broken in ([*proofs[1][:1], b""], proofs[1][:1], [*proofs[1], proofs[1][0]]):
        with pytest.raises(Malformed):
            toploc.score(own, [proofs[0], broken])
    with pytest.raises(Malformed):
        toploc.score(own, proofs[:1])


@pytest.mark.parametrize(("values", "modulus", "fine"), [
    (65497, 65497, True), (65497, 65496, False), (65498, 65496, True), (1 << 20, 65000, True), (1 << 20, 64999, False),
])  # fmt: skip
def test_the_modulus_is_one_that_honest_proofs_have(values: int, modulus: int, fine: bool) -> None:
    proof = modulus.to_bytes(2, "big") + bytes(2 * TOPLOC_K)
    if fine:
        assert toploc.parse(proof, values)[0] == modulus
    else:
        with pytest.raises(Malformed, match="modulus"):
            toploc.parse(proof, values)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_arbitrary_bytes_are_refused_or_scored_but_never_crash(proof: bytes) -> None:
    with suppress(MurmurationError):
        toploc.score([OWN], [[proof]])


@given(st.integers(1, 3 * TOPLOC_CHUNK), st.sampled_from([8, 64, 200]), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_batches_give_the_proofs_of_single_sequences(tokens: int, hidden: int, seed: int) -> None:
    sequences = [rows(1 + (tokens * (i + 1)) % 70, hidden, seed + i) for i in range(3)]
    assert toploc.prove(sequences) == [toploc.prove([s])[0] for s in sequences]


OWN = rows(32, 128)
