"""Length budgets: which one a prompt announces, in which words, and what an answer of another length loses.

    budget B, length L, both in generated tokens of all turns      penalty
    exact      "Think for B tokens …"                              α · |B − L|
    maximum    "Think for at most B tokens …"                      α · max(0, L − B)
    ratio      "Think for B tokens …"                              α · |B − L| / B

`exact` is the paper's (arXiv 2505.07291, section 3.1.2); `maximum` follows L1-Max (arXiv 2503.04697), which does without a reward for
being shorter here. A penalty is computed with whole numbers and rounded once, to the grid of reward.py: all parties get the same one, and
a rollout file holds it exactly up to 16. It has no upper bound; the reward is the task's minus the penalty. Vectors: tests/vectors/length_rewards.json.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from protocol import seeds
from protocol.reward import on_grid
from protocol.runspec_reward import RewardSpec

_WORDS = {"exact": "", "maximum": "at most ", "ratio": ""}
_SENTENCE = " Think for {words}{budget} tokens before giving a response."


def announce(text: str, reward: RewardSpec, budget: int) -> str:
    """A problem's text with its length budget in tokens; 0: none."""
    return text + _SENTENCE.format(words=_WORDS[reward.length], budget=budget) if budget else text


def phrases(reward: RewardSpec) -> list[str]:
    """What announcements consist of, but for the number."""
    return _SENTENCE.replace("{words}", _WORDS[reward.length]).split("{budget}") if reward.budgets else []


def budgets(reward: RewardSpec, hardware: int | None = None) -> list[int]:
    """What budgets are drawn from: those of a hardware class; None: those of all classes in order, where nobody's class matters."""
    if hardware is not None:
        return reward.budgets.get(str(hardware), [])
    return [budget for number in sorted(reward.budgets, key=int) for budget in reward.budgets[number]]


def draw(reward: RewardSpec, seed: bytes, index: int, hardware: int | None = None) -> int:
    """The length budget in tokens of group or problem `index`, out of `budgets`; 0 where there are none."""
    among = budgets(reward, hardware)
    return among[seeds.below(seeds.derive(seed, "budget", index), len(among))] if among else 0


def off(reward: RewardSpec, budget: int, tokens: int) -> int:
    """Tokens that an answer of so many is off its budget, as far as they cost; 0 without a budget."""
    if not budget:
        return 0
    return max(0, tokens - budget) if reward.length == "maximum" else abs(budget - tokens)


def penalty(reward: RewardSpec, budget: int, tokens: int) -> float:
    """What an answer of so many generated tokens loses, a multiple of `reward.STEP`; 0 where no budget was announced."""
    lost = Fraction(Decimal(reward.alpha)) * off(reward, budget, tokens)
    return on_grid(lost / budget if reward.length == "ratio" and budget else lost)
