"""The committed vectors hold: wire formats have not moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benches.activations import ranked, tying
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from protocol import canonical, runspec, sampling, seeds, signing, toploc
from protocol.constants import TOPLOC_CHUNK
from protocol.errors import Malformed, UnknownVersion, VersionMismatch
from protocol.rollout import Header
from protocol.shardcast.manifest import Manifest, ManifestLimits
from protocol.submission import SubmissionRef
from tests.protocol.patterns import competing

VECTORS = Path(__file__).parent.parent / "vectors"


def load(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


@pytest.mark.parametrize("case", load("seeds"), ids=lambda case: f"step{case['step']}")
def test_seeds(case: dict[str, Any]) -> None:
    seed = seeds.submission_seed(
        chain_id=case["chain_id"], contract=bytes.fromhex(case["contract"][2:]), run=case["run"],
        beacon=bytes.fromhex(case["beacon"]), node=bytes.fromhex(case["node"][2:]), step=case["step"],
        sequence=case["sequence"],
    )  # fmt: skip
    assert seed.hex() == case["seed"]
    for name, expected in case["derived"].items():
        label, indices = name.split("[")
        assert seeds.derive(seed, label, *map(int, indices[:-1].split(","))).hex() == expected
    assert str(seeds.sampling_key(seeds.derive(seed, "sample", 2, 15))) == case["sampling_key_of_sample_2_15"]


@pytest.mark.parametrize("case", load("eip712")["cases"], ids=lambda case: case["type"])
def test_signatures(case: dict[str, Any]) -> None:
    given = load("eip712")
    kind = getattr(signing, case["type"])
    fields = {
        name: bytes.fromhex(value) if solidity == "bytes32" else value
        for (name, value), solidity in zip(case["message"].items(), kind.SOLIDITY, strict=True)
    }
    message = kind(**fields)
    domain = signing.Domain(given["chain_id"], given["contract"])
    assert message.signing_hash(domain).hex() == case["hash"]
    wallets = encode_typed_data(full_message=json.loads(json.dumps(message.typed_data(domain))))
    assert keccak(b"\x19" + wallets.version + wallets.header + wallets.body).hex() == case["hash"]
    assert message.signer(bytes.fromhex(case["signature"]), domain) == given["signer"]


@pytest.mark.parametrize("case", load("sampling"), ids=lambda case: f"key{case['key']}")
def test_noise(case: dict[str, Any]) -> None:
    noise = sampling.noise(int(case["key"]), np.array(case["positions"]), 151_936)
    found = noise[:, case["indices"]]
    assert np.allclose(found, np.array(case["noise"], float), atol=2e-9)


def test_noise_of_words() -> None:
    cases = load("gumbel")
    found = sampling.gumbel_of_words(np.array([case["word"] for case in cases], np.uint64))
    assert np.allclose(found, [float(case["noise"]) for case in cases], atol=2e-9)


@pytest.mark.parametrize("case", load("draws")["cases"], ids=str)
def test_draws(case: dict[str, Any]) -> None:
    given = load("draws")
    i = np.arange(given["positions"] * given["vocabulary"])
    logits = ((i * 40503 + (i >> 5) * 9973) % 611 / 100).reshape(given["positions"], -1)
    cut = {"temperature": float(case["temperature"]), "top_k": case["top_k"], "top_p": float(case["top_p"])}
    assert sampling.draw(logits, key=int(given["key"]), **cut).tolist() == case["tokens"]


@pytest.mark.parametrize("case", load("toploc")["ours"], ids=lambda case: f"{case['tokens']}x{case['hidden']}")
def test_proofs(case: dict[str, Any]) -> None:
    rows = tying(case["tokens"], case["hidden"])
    assert [proof.hex() for proof in toploc.prove([rows])[0]] == case["proofs"]


@pytest.mark.parametrize("case", load("toploc")["peer"]["cases"], ids=lambda case: f"{case['tokens']}x{case['hidden']}")
def test_proofs_of_the_published_package(case: dict[str, Any]) -> None:
    """Ours are byte for byte those that toploc 0.1.6 built, and its proofs score as it scored them."""
    shape = (case["tokens"], case["hidden"], case["prime"], case["multiplier"])
    proofs = [bytes.fromhex(proof) for proof in case["proofs"]]
    assert toploc.prove([ranked(*shape)])[0] == proofs
    found = toploc.score([ranked(*shape, shifted=True)], [proofs])[0]
    expected = case["scores_of_shifted"]
    assert [[s.exponents, s.mantissa_mean, s.mantissa_median] for s in found] == expected


@pytest.mark.parametrize("case", load("toploc")["peer"]["tying"], ids=lambda case: f"{case['tokens']}x{case['hidden']}")
def test_each_reads_the_others_proofs_of_what_ties_but_for_contested_places(case: dict[str, Any]) -> None:
    """Where none is contested bytes are equal; else ours are of the lowest indices, and as many points may differ as places are."""
    rows = tying(case["tokens"], case["hidden"])
    own = [proof.hex() for proof in toploc.prove([rows])[0]]
    read = toploc.score([rows], [[bytes.fromhex(proof) for proof in case["proofs"]]])[0]
    chunks = [rows[first : first + TOPLOC_CHUNK] for first in range(0, len(rows), TOPLOC_CHUNK)]
    for i, most in enumerate(map(competing, chunks)):
        if most == 0:
            assert own[i] == case["proofs"][i]
        assert max(read[i].exponents, read[i].signs, case["scores_of_ours"][i][0]) <= most


def test_of_what_the_package_proved_some_ties() -> None:
    """And it took other equals than the lowest ones."""
    cases = load("toploc")["peer"]["tying"]
    differ = [
        proof.hex() != theirs
        for case in cases
        for proof, theirs in zip(toploc.prove([tying(case["tokens"], case["hidden"])])[0], case["proofs"], strict=True)
    ]
    assert (sum(differ), len(differ)) == (3, 12)


def test_the_package_proved_what_is_hard() -> None:
    """Colliding indices, models smaller than k, short last chunks, and a median between two."""
    cases = load("toploc")["peer"]["cases"]
    assert {int(proof[:4], 16) < 65497 for case in cases for proof in case["proofs"]} == {True, False}
    assert min(len(proof) for case in cases for proof in case["proofs"]) == 2 * (2 + 2)
    assert any(case["tokens"] % 32 not in (0, 1) for case in cases)
    assert [0, 2.5, 5.0] in [
        scores for case in cases for scores in case["scores_of_shifted"]
    ]  # of mantissas off by 0 and 5


def test_submission_ids() -> None:
    case = load("submission_id")
    ref = SubmissionRef(case["node"], case["step"], case["sequence"], bytes.fromhex(case["root"]))
    assert ref.submission_id(case["run"]).hex() == case["submission"]


@pytest.mark.parametrize("case", load("spec_digests"), ids=lambda case: case["name"])
def test_digests_of_run_specs(case: dict[str, Any]) -> None:
    """Whatever fields have been added since: what was written then is read, and written again just so."""
    data = canonical.encode(case["spec"])
    assert canonical.digest(case["spec"]).hex() == case["digest"]
    spec = runspec.from_bytes(data, bytes.fromhex(case["digest"]))
    assert spec.canonical() == data
    assert spec.digest.hex() == case["digest"]


@pytest.mark.parametrize("case", load("manifests"), ids=lambda case: case["name"])
def test_manifests_are_read_or_refused_for_the_reason_recorded(case: dict[str, Any]) -> None:
    data = canonical.encode(case["manifest"])
    if case["refused"]:
        with pytest.raises({"later": VersionMismatch, "malformed": Malformed}[case["refused"]]):
            Manifest.parse(data, ManifestLimits())
        return
    manifest = Manifest.parse(data, ManifestLimits())
    assert manifest.encode() == data
    assert manifest.digest.hex() == case["digest"]


@pytest.mark.parametrize("case", load("rollout_header"), ids=lambda case: case["name"])
def test_headers_of_rollout_files_are_read_or_refused_for_the_reason_recorded(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["bytes"])
    if case["refused"]:
        with pytest.raises({"later": UnknownVersion, "malformed": Malformed}[case["refused"]]):
            Header.parse(data)
        return
    assert Header.parse(data).encode() == data == canonical.encode(case["header"])


def test_canonical_json() -> None:
    case = load("canonical")
    assert canonical.encode(case["value"]).hex() == case["bytes"]
    assert canonical.digest(case["value"]).hex() == case["sha256"]


_REFUSED = {
    "length": r"has \d+ bytes, this one \d+$",
    "modulus": r"^modulus \d+ is outside",
    "coefficient": "not an element of the field$",
}


@pytest.mark.parametrize("case", load("proof_forms"), ids=lambda case: case["name"])
def test_bytes_are_a_proof_or_refused_for_the_reason_recorded(case: dict[str, Any]) -> None:
    proof = bytes.fromhex(case["proof"])
    if case["refused"]:
        with pytest.raises(Malformed, match=_REFUSED[case["refused"]]):
            toploc.parse(proof, case["values"])
        return
    modulus, coefficients = toploc.parse(proof, case["values"])
    assert (modulus, len(coefficients)) == (case["modulus"], case["coefficients"])
    assert b"".join(int(c).to_bytes(2, "big") for c in coefficients) == proof[2:]


def test_the_forms_of_proofs_are_many_and_refused_for_every_reason() -> None:
    cases = load("proof_forms")
    assert len(cases) >= 20
    assert {case["refused"] for case in cases} == {None, *_REFUSED}
