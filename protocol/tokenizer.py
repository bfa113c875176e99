"""Text to tokens and back, from a run's tokenizer.json alone (the Rust `tokenizers` package; no torch, no templates in code).

The prompt a problem becomes is fixed by the run spec: its template, the problem's text and, where the hardware class has
length budgets, the sentence that announces one (length_rewards.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import tokenizers

from protocol import architectures
from protocol.errors import Malformed
from protocol.length_rewards import announce
from protocol.model_files import CONFIG, TOKENIZER, read_json
from protocol.runspec import AnswerSpec, RewardSpec


class AskedProblem(Protocol):
    """A problem, as far as its prompt cares."""

    @property
    def environment(self) -> int: ...

    @property
    def prompt(self) -> str: ...


class Tokenizer:
    """The tokenizer.json and config.json of one model folder."""

    def __init__(self, folder: Path) -> None:
        """Raises Malformed when either file is broken. Whoever calls has checked their digests against the run spec."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
            config = read_json(folder / CONFIG)
            ends = config["eos_token_id"]
            self.vocabulary = int(config["vocab_size"])
            self.positions = architectures.positions(config)
            self.end_tokens = frozenset(ends if isinstance(ends, list) else [int(ends)])
        except Exception as error:
            raise Malformed(f"model folder {folder} cannot be used: {error}") from error

    def prompt(self, spec: AnswerSpec, problem: AskedProblem, budget: int) -> list[int]:
        """Token ids of a problem's prompt; `budget` 0 announces none."""
        return self._prompt(spec, problem.prompt, spec.reward_of(problem.environment), budget)

    def _prompt(self, spec: AnswerSpec, text: str, reward: RewardSpec, budget: int) -> list[int]:
        return self.encode(spec.sampling.prompt_template.replace("{prompt}", announce(text, reward, budget)))

    def longest(self, spec: AnswerSpec, texts: Iterable[str]) -> int:
        """Tokens of the longest prompt of these problems with the longest completion, whatever budget is announced."""
        announced = {(reward.length, reward.longest): reward for reward in (RewardSpec(), *spec.rewards.values())}
        prompts = (
            len(self._prompt(spec, text, reward, reward.longest)) for text in texts for reward in announced.values()
        )
        return max(prompts, default=1) + spec.sampling.longest

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def ended(self, completion: Sequence[int]) -> bool:
        return len(completion) > 0 and completion[-1] in self.end_tokens

    def answer(self, completion: list[int]) -> str | None:
        """Text of a completion without its end token; None when it never ended."""
        return self.text(completion[:-1]) if self.ended(completion) else None

    def text(self, tokens: Sequence[int]) -> str:
        """What these tokens say, without special ones."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)
