"""Groups that a batch may be made of: every content once, nothing that was trained on, nothing that is too old.

Everything here is kept as it changes, so that looking costs the same however many groups came before. Groups that were trained
on are remembered by name and content for as long as they could be met again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainer.learning.packing import TrainingSample

Name = tuple[bytes, int]
"""Submission and index of a group in it."""


@dataclass(frozen=True)
class TrainingGroup:
    """Samples of one problem that teach something; `submission` and `index` name it."""

    submission: bytes
    index: int
    node: str
    step: int
    samples: tuple[TrainingSample, ...]
    content: str = ""
    """Digest of prompts, turns and answers, in order: the same samples under another name teach nothing new."""
    rewards: tuple[float, ...] = ()
    """Of the samples, for whoever looks at them; learning knows advantages only."""

    @property
    def name(self) -> Name:
        return self.submission, self.index

    def staleness(self, step: int) -> int:
        """Staleness in a batch for `step`: versions of the weights between the group's and the trainer's."""
        return step - self.step


class GroupPool:
    """Not safe to share between threads."""

    def __init__(self) -> None:
        self._ready: dict[Name, TrainingGroup] = {}
        self._by_content: dict[
            str, dict[Name, TrainingGroup]
        ] = {}  # all that are usable, the ready one of each content among them
        self._by_step: dict[int, dict[Name, TrainingGroup]] = {}  # the same
        self._trained: dict[Name, tuple[int, str]] = {}  # → (step, content)
        self._contents_trained: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._ready)

    def ready(self) -> list[TrainingGroup]:
        """What a batch could be made of, in the order of becoming so."""
        return list(self._ready.values())

    def was_trained_on(self, name: Name) -> bool:
        return name in self._trained

    def add(self, group: TrainingGroup) -> bool:
        """Takes in a usable group. False for a duplicate, which is kept in case the other one is taken back."""
        if group.name in self._trained:
            return True
        same = self._by_content.setdefault(group.content, {})
        same[group.name] = group
        self._by_step.setdefault(group.step, {})[group.name] = group
        if group.content in self._contents_trained or len(same) > 1:
            return False
        self._ready[group.name] = group
        return True

    def take_back(self, groups: Iterable[TrainingGroup]) -> None:
        """These are usable no more."""
        for group in groups:
            same = self._by_content.get(group.content, {})
            if same.pop(group.name, None) is None:
                continue
            of_step = self._by_step[group.step]
            del of_step[group.name]
            if not of_step:
                del self._by_step[group.step]
            if not same:
                del self._by_content[group.content]
            if self._ready.pop(group.name, None) is not None:
                self._offer(group.content)

    def train_on(self, group: TrainingGroup) -> None:
        """A batch has the group: neither it nor the same samples under another name are ready again."""
        self.take_back([group])
        self._note_trained(group.name, group.step, group.content)

    def drop_before(self, step: int) -> int:
        """Drops groups of older versions; returns how many were ready."""
        dropped = 0
        for old in [of for of in self._by_step if of < step]:
            groups = list(self._by_step[old].values())
            dropped += sum(group.name in self._ready for group in groups)
            self.take_back(groups)
        return dropped

    def forget_before(self, step: int) -> None:
        """Forgets what was trained on of versions so old that nothing of them can be met again."""
        for name, (of, content) in list(self._trained.items()):
            if of < step:
                del self._trained[name]
                self._contents_trained[content] -= 1
                if not self._contents_trained[content]:
                    del self._contents_trained[content]
                    self._offer(content)

    @property
    def trained(self) -> Iterator[tuple[Name, int, str]]:
        """(name, step, content) of what was trained on, by name."""
        return ((name, *of) for name, of in sorted(self._trained.items()))

    def restore(self, trained: Iterable[tuple[Name, int, str]]) -> None:
        """What an earlier life of this process has trained on."""
        for name, step, content in trained:
            self._note_trained(name, step, content)

    def _offer(self, content: str) -> None:
        """Makes the first group with this content ready, where there is one."""
        for group in self._by_content.get(content, {}).values():
            self._ready[group.name] = group
            return

    def _note_trained(self, name: Name, step: int, content: str) -> None:
        if name not in self._trained:
            self._trained[name] = step, content
            self._contents_trained[content] += 1
        for group in list(self._by_content.get(content, {}).values()):
            self._ready.pop(group.name, None)
