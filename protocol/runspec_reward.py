"""Length rewards of a run spec: how long answers shall be, and what another length costs.

They go with any environment: those of [spec.reward] with all that have none of their own. What follows from them, in prompts and
rewards, is protocol/length_rewards.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field, field_validator

from protocol.runspec_part import DecimalText, Later, Part
from protocol.runspec_verification import classes

ALPHA_MAX, ALPHA_PLACES = 100, 12

HardwareKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,2})$")]
"""The number of a hardware class as the key of a table."""
LengthBudget = Annotated[int, Field(gt=0, lt=2**31)]
"""Generated tokens that a prompt announces."""


class RewardSpec(Part):
    """What an answer earns besides its task reward."""

    alpha: DecimalText = "0"
    """Reward lost per token off the length budget (arXiv 2505.07291, section 3.1.2), or with "ratio" per budget's length; 0 switches it off."""
    length: Annotated[Literal["exact", "maximum", "ratio"], Later()] = "exact"
    """What a budget is: a length to meet, or one not to pass ("maximum": shorter answers lose nothing). "ratio": to meet, and being off
    by a part of the budget costs as much whatever the budget."""
    budgets: dict[HardwareKey, Annotated[list[LengthBudget], Field(min_length=1)]] = Field(default={})
    """Length budgets in tokens for each hardware class (the class number as text); empty: none is announced to any."""

    @field_validator("alpha")
    @classmethod
    def _computed_exactly(cls, text: str) -> str:
        """Penalties are computed without rounding: an exponent of a million would not come to an end."""
        value = Decimal(text)
        if not abs(int(value.as_tuple().exponent)) <= ALPHA_PLACES or value > ALPHA_MAX:
            raise ValueError(f"expected at most {ALPHA_MAX}, with at most {ALPHA_PLACES} decimals")
        return text

    @property
    def longest(self) -> int:
        """The largest budget; 0 where there is none."""
        return max((budget for of_class in self.budgets.values() for budget in of_class), default=0)

    def require_classes(self, listed: Sequence[int], place: str = "reward") -> None:
        """Raises ValueError unless budgets are for exactly these hardware classes, or for none.

        A seat chooses its class: one without budgets would be a way around them.
        """
        named = [int(key) for key in self.budgets]
        if left_out := sorted(set(listed) - set(named)) if named else []:
            raise ValueError(f"{place}.budgets leaves out {classes(left_out)}: give budgets to every class or to none")
        if unknown := sorted(set(named) - set(listed)):
            raise ValueError(f"{place}.budgets is of {classes(unknown)}, which verification does not list")

    def require_reach(self, max_new_tokens: int, place: str = "reward") -> None:
        """Raises ValueError for a budget that no answer can be as long as."""
        if self.longest > max_new_tokens:
            raise ValueError(
                f"{place}.budgets announces {self.longest} tokens, and sampling.max_new_tokens is {max_new_tokens}"
            )
