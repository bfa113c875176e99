"""A taskset of verifiers with tools: words of a language that nobody speaks, which a dictionary knows; it says how often it was asked."""

import verifiers.v1 as vf

__all__ = ["Words"]

WORDS = {"korn": "hill", "halla": "ferry", "vesk": "island", "tam": "river"} | {
    f"lo{number}": f"thing {number}" for number in range(60)
}


class Dictionary(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "dictionary"

    def __init__(self, config: vf.ToolsetConfig) -> None:
        super().__init__(config)
        self.asked = 0
        self.word = ""

    async def setup_task(self, task: "WordData") -> None:
        self.word = task.word

    @vf.tool
    def look_up(self, word: str, times: int = 1) -> str:
        """What a word means."""
        self.asked += 1
        return f"{self.asked}: {WORDS[word]}" * times

    @vf.tool
    async def first_letter(self) -> str:
        """The first letter of the word that is asked for."""
        return self.word[0]


class WordData(vf.TaskData):
    word: str


class WordTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class WordTask(vf.Task[WordData, vf.State, WordTaskConfig]):
    @classmethod
    def toolsets(cls, config: WordTaskConfig) -> list[vf.Toolset]:
        return [Dictionary(config.tools)]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == WORDS[self.data.word])


class WordConfig(vf.TasksetConfig):
    task: WordTaskConfig = WordTaskConfig()


class Words(vf.Taskset[WordTask, WordConfig]):
    def load(self) -> list[WordTask]:
        return [WordTask(WordData(prompt=f"What is a {word}?", word=word), self.config.task) for word in WORDS]
