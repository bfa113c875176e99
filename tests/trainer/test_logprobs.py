"""Chunked logprobs and entropies are the plain ones, in value and gradient, without the plain one's memory."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from benches.memory import peak_bytes
from torch import Tensor, nn

from node.engine.output import Bend
from trainer.learning import logprobs
from trainer.learning.logprobs import token_logprobs

N, H, V = 23, 8, 41


BENDS = {
    "none": Bend(),
    "scaled": Bend(scale=0.25),
    "divided": Bend(divisor=6.0),
    "capped": Bend(cap=1.5),
    "all at once": Bend(0.7, 1.3, 2.0),
}


def plain(hidden: Tensor, head: nn.Linear, targets: Tensor, bend: Bend = BENDS["none"]) -> tuple[Tensor, Tensor]:
    logits = head(hidden) * bend.scale / bend.divisor
    logits = logits if bend.cap is None else bend.cap * torch.tanh(logits / bend.cap)
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)


def inputs(bias: bool = False, dtype: torch.dtype = torch.float64) -> tuple[Tensor, nn.Linear, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(H, V, bias=bias, dtype=dtype)
    nn.init.normal_(head.weight)
    return torch.randn(N, H, dtype=dtype, requires_grad=True), head, torch.randint(0, V, (N,))


@pytest.mark.parametrize("rows", [1, 4, 22, 23, 100])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bend", BENDS)
def test_values_and_gradients_are_those_of_the_plain_form(rows: int, bias: bool, bend: str) -> None:
    hidden, head, targets = inputs(bias)
    mixture = torch.randn(2, N, dtype=torch.float64)
    found = []
    for of in (plain, partial(token_logprobs, chunk_tokens=rows)):
        logprobs, entropy = of(hidden, head, targets, bend=BENDS[bend])
        leaves = [hidden, *head.parameters()]
        gradients = torch.autograd.grad((logprobs * mixture[0] + entropy * mixture[1]).sum(), leaves)
        found.append([logprobs, entropy, *gradients])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("which", [0, 1], ids=["logprobs", "entropy"])
def test_gradients_agree_with_finite_differences_also_of_one_output_alone(rows: int, which: int) -> None:
    hidden, head, targets = inputs(bias=True)

    def of(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return token_logprobs(h, SimpleNamespace(weight=w, bias=b), targets[:5], chunk_tokens=rows)[which]

    assert torch.autograd.gradcheck(of, (hidden[:5].detach().requires_grad_(), head.weight, head.bias))


def test_a_frozen_head_gets_no_gradient_and_hidden_states_still_do() -> None:
    hidden, head, targets = inputs()
    head.requires_grad_(False)
    token_logprobs(hidden, head, targets)[0].sum().backward()
    assert head.weight.grad is None
    assert hidden.grad is not None


def test_sums_over_the_vocabulary_are_in_float32_when_the_head_is_in_bfloat16() -> None:
    hidden, head, targets = inputs(dtype=torch.bfloat16)
    logprobs, entropy = token_logprobs(hidden, head, targets)
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    exact = head(hidden).float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs, exact)
    (logprobs.sum() + entropy.sum()).backward()
    assert hidden.grad is not None and hidden.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("cap", [None, 30.0, 500.0])
@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_extreme_logits_give_finite_values_and_gradients(scale: float, cap: float | None) -> None:
    """A distribution on one token has no entropy, and log 0 must not turn that into NaN."""
    hidden = torch.zeros(4, H).index_fill_(1, torch.tensor(0), 1.0).requires_grad_()
    head = nn.Linear(H, V, bias=False)
    with torch.no_grad():
        head.weight.zero_()[3, 0] = scale
    for rows in (2, 100):
        logprobs, entropy = token_logprobs(hidden, head, torch.full((4,), 3), bend=Bend(cap=cap), chunk_tokens=rows)
        assert logprobs.abs().max() == 0
        assert entropy.abs().max() < 1e-6
        for gradient in torch.autograd.grad((logprobs + entropy).sum(), [hidden, head.weight]):
            assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(("vocabulary", "tokens"), [(1 << 15, 64), (152_064, 48), (1 << 12, 512)])
def test_a_chunk_has_tokens_enough_whatever_the_vocabulary(
    vocabulary: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(logprobs, "_logits", lambda hidden, *_: seen.append(len(hidden)) or torch.zeros(len(hidden), 1))
    head = SimpleNamespace(weight=torch.empty(vocabulary, 1, device="meta"), bias=None)
    logprobs.token_logprobs(torch.zeros(2 * tokens, 1), head, torch.zeros(2 * tokens, dtype=torch.long))
    assert seen == [tokens, tokens]


def test_memory_is_at_most_15_percent_of_the_full_log_softmax_at_a_vocabulary_of_32k() -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(16, 32_768, bias=False), torch.randn(1024, 16, requires_grad=True)
    targets = torch.randint(0, 32_768, (1024,))

    def step(of: object) -> None:
        logprobs, entropy = of(hidden, head, targets)  # type: ignore[operator]
        (logprobs.sum() + entropy.sum()).backward()

    assert peak_bytes(lambda: step(token_logprobs)) <= 0.15 * peak_bytes(lambda: step(plain))
