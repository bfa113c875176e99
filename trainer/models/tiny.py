"""A tiny Qwen3-architecture policy, made on the spot: for development, tests and the demo, where nothing can be downloaded.

Tokens: one token per character, and one per piece of text that the prompts of a task, or its answers, have in common, so that
a prompt of 500 characters is a dozen tokens, and so is a program of one line. Warm-up: supervised steps on the training split until every task scores a
little, because reinforcement learning cannot start from nothing.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from node.engine import EngineSettings, Generator, Prompt, make_engine, output
from node.engine.weights import save_weights
from protocol import length_rewards, seeds
from protocol.environments import Problem, TaskSet
from protocol.errors import ConfigError
from protocol.model_files import WEIGHTS
from protocol.runspec import RewardSpec, starts
from protocol.sandbox import EnvironmentSandbox
from protocol.shell import runfile
from protocol.tokenizer import Tokenizer
from trainer.learning.packing import TrainingSample, pack

log = logging.getLogger("trainer")

PAD, END, UNKNOWN = 0, 1, 2
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SURVEYED = 1000  # problems per environment that the tokenizer is made from
_STEPS_MAX, _STEPS_MIN, _CHECK_EVERY = 600, 20, 2
_BATCH, _ROW, _LR = 64, 128, 2e-3
_HELD_OUT = 128  # held-out problems per environment that a check of the warm-up uses


@dataclass(frozen=True)
class MadePolicy:
    folder: str
    parameters: int
    vocabulary: int
    steps: int
    scores: dict[str, float]
    """Held-out score after the warm-up, by dataset."""


def make_policy(
    file: Path, folder: Path, *, target: float, seed: int, phrases: Sequence[str] = (), announces: bool = False
) -> MadePolicy:
    """Writes config.json, tokenizer.json and model.safetensors into `folder` for the environments of run.toml.

    Each of `phrases`, text that prompts will hold beside the problems' own, gets a token. With `announces`, prompts of the warm-up
    announce the length budgets of run.toml; nothing makes the policy keep them.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    environments = runfile.environments(file)
    with EnvironmentSandbox(environments) as sandbox:
        tasks = TaskSet(environments, sandbox)
        common = runfile.reward(file) if announces else RewardSpec()
        rewards = [(announces and one.reward) or common for one in environments]
        phrases = [*phrases, *(phrase for reward in rewards for phrase in length_rewards.phrases(reward))]
        vocabulary = _write_tokenizer(tasks, folder / "tokenizer.json", phrases)
        model = _model(vocabulary)
        model.config.save_pretrained(folder)
        tokenizer = Tokenizer(folder)
        steps, scores = _warm_up(model, tasks, sandbox, tokenizer, folder, target, seed, rewards)
    parameters = sum(p.numel() for p in model.parameters())
    return MadePolicy(str(folder), parameters, vocabulary, steps, scores)


# ---- tokenizer ---------------------------------------------------------------------------------------------------------


def _write_tokenizer(tasks: TaskSet, path: Path, phrases: Sequence[str]) -> int:
    """Writes tokenizer.json; returns the vocabulary's size, rounded up to 32."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    text, pieces = set(_LETTERS), set(phrases)
    start = 0
    for spec in tasks.specs:
        picks = random.Random(0).sample(range(spec.problems), min(_SURVEYED, spec.problems))
        problems = tasks.problems([start + i for i in picks])
        start += spec.problems
        for problem in problems:
            text |= set(problem.prompt) | set(problem.answer or "")
        for texts in ([p.prompt for p in problems], [p.answer for p in problems if p.answer]):
            pieces |= set(_shared_pieces(texts))
    names = ["<pad>", "<eos>", "<unk>", *sorted(text)]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], unk_token="<unk>"))  # noqa: S106
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<pad>", special=True), AddedToken("<eos>", special=True)])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in sorted(pieces, key=lambda p: (-len(p), p))])
    tokenizer.save(str(path))
    return (tokenizer.get_vocab_size() + 31) // 32 * 32


def _shared_pieces(prompts: Sequence[str]) -> list[str]:
    """Text that prompts, or answers, of one task have in common: beginning, end, and frequent runs of words in between.

    Single letters and numbers stay characters: they are the data of the task.
    """
    begin = _common_beginning(prompts)
    end = _common_beginning([prompt[len(begin) :][::-1] for prompt in prompts])[::-1]
    middles = [re.findall(r"\s+|\S+", prompt[len(begin) : len(prompt) - len(end)]) for prompt in prompts]
    frequency = Counter(word for middle in middles for word in set(middle))
    runs: Counter[str] = Counter()
    for middle in middles:
        run: list[str] = []
        for word in [*middle, None]:
            common = word is not None and (
                word.isspace()
                or (frequency[word] >= 0.15 * len(prompts) and not re.fullmatch(r"\W*(\d+|\w)?\W*", word))
            )
            if common:
                run.append(word)
            else:
                runs["".join(run)] += 1
                run = []
    found = [begin, end, *(piece for piece, count in runs.items() if count >= 0.02 * len(prompts))]
    return [piece for piece in found if len(piece.strip()) >= 4]


def _common_beginning(texts: Sequence[str]) -> str:
    letters = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in letters)


# ---- model -------------------------------------------------------------------------------------------------------------


def _model(vocabulary: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        intermediate_size=384, max_position_embeddings=1024, tie_word_embeddings=True, pad_token_id=PAD, eos_token_id=END,
        bos_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, attn_implementation="sdpa",
    )  # fmt: skip
    config.architectures = ["Qwen3ForCausalLM"]
    return Qwen3ForCausalLM(config)


# ---- warm-up -----------------------------------------------------------------------------------------------------------


def _warm_up(
    model: Any,
    tasks: TaskSet,
    sandbox: EnvironmentSandbox,
    tokenizer: Tokenizer,
    folder: Path,
    target: float,
    seed: int,
    rewards: Sequence[RewardSpec],
) -> tuple[int, dict[str, float]]:
    """Supervised steps until every environment scores `target` on held-out problems; returns (steps, scores)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, betas=(0.9, 0.95), weight_decay=0.01)
    rng = random.Random(seed)
    engine = make_engine(EngineSettings(device="cpu"), "float32")
    weights = [1.0] * len(tasks.specs)
    scores: dict[str, float] = {}
    for step in range(1, _STEPS_MAX + 1):
        for group in optimizer.param_groups:
            group["lr"] = _LR * min(1.0, step / 20)
        problems = _draw(tasks, rng, weights, _BATCH)
        examples = [_example(problem, tokenizer, rewards[problem.environment], rng) for problem in problems]
        _supervised_step(model, optimizer, examples)
        if step < _STEPS_MIN or step % _CHECK_EVERY:
            continue
        save_weights(model, folder / WEIGHTS, torch.bfloat16)
        scores = _held_out_scores(engine, tasks, sandbox, tokenizer, folder, rewards)
        if min(scores.values()) >= target:
            break
        # A task that is there already waits for the others.
        weights = [1.0 if scores[spec.dataset] < target else 0.1 for spec in tasks.specs]
    return step, scores


def _supervised_step(model: Any, optimizer: torch.optim.Optimizer, examples: list[TrainingSample]) -> None:
    model.train()
    batches = pack(examples, _ROW, 64)
    tokens = sum(rows.tokens for rows in batches)
    optimizer.zero_grad(set_to_none=True)
    for rows in batches:
        hidden = model.base_model(
            input_ids=rows.ids, position_ids=rows.positions, attention_mask=rows.mask, use_cache=False
        ).last_hidden_state
        logits = output.logits(model, hidden.flatten(0, 1)[rows.source])
        loss = torch.nn.functional.cross_entropy(logits.float(), rows.targets, reduction="sum")
        (loss / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _draw(tasks: TaskSet, rng: random.Random, weights: list[float], count: int) -> list[Problem]:
    """`count` random problems that evaluation does not ask, of environments of these weights."""
    first, found = starts(tasks.specs), list[Problem]()
    while len(found) < count:
        of = rng.choices(range(len(tasks.specs)), weights, k=count - len(found))
        picks = [first[number] + rng.randrange(tasks.specs[number].problems) for number in of]
        found += [problem for problem in tasks.problems(picks) if not problem.is_held_out]
    return found


def _answer(problem: Problem) -> str:
    """Raises ConfigError where the environment knows no right answer: then there is nothing to warm up on."""
    if problem.answer is None:
        raise ConfigError("a tiny policy is warmed up on right answers, and an environment of the run knows none")
    return problem.answer


def _example(problem: Problem, tokenizer: Tokenizer, reward: RewardSpec, rng: random.Random) -> TrainingSample:
    answer = [*tokenizer.encode(_answer(problem)), END]
    budgets = length_rewards.budgets(reward)
    prompt = tokenizer.encode(length_rewards.announce(problem.prompt, reward, rng.choice(budgets) if budgets else 0))
    return TrainingSample(np.array(prompt, np.int32), np.array(answer, np.int32), 0.0)


def _held_out_scores(
    engine: Generator,
    tasks: TaskSet,
    sandbox: EnvironmentSandbox,
    tokenizer: Tokenizer,
    folder: Path,
    rewards: Sequence[RewardSpec],
) -> dict[str, float]:
    engine.load(folder)
    seed = hashlib.sha256(b"murmuration/warm-up/1").digest()
    scores = {}
    for environment, spec in enumerate(tasks.specs):
        problems = [problem for problem in tasks.held_out if problem.environment == environment][:_HELD_OUT]
        reward = rewards[environment]
        prompts = [
            Prompt(
                tokenizer.encode(length_rewards.announce(problem.prompt, reward, length_rewards.draw(reward, seed, i))),
                (seeds.sampling_key(seeds.derive(seed, "sample", i)),),
            )
            for i, problem in enumerate(problems)
        ]
        longest = max(len(tokenizer.encode(problem.answer or "")) for problem in problems) + 2
        generated = engine.generate(
            prompts, temperature=1.0, max_new_tokens=longest, end_tokens=tokenizer.end_tokens, prove=False
        )
        answers = [(p.index, tokenizer.answer(g[0].tokens)) for p, g in zip(problems, generated, strict=True)]
        found = sandbox.score(answers, held_out=True)
        scores[spec.dataset] = sum(found) / len(found)
    return scores
