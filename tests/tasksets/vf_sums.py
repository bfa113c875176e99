"""A taskset of verifiers in one turn: sums, a reward for the value and half of one for saying nothing else."""

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumData(vf.TaskData):
    answer: int


class SumTaskConfig(vf.TaskConfig):
    strict: bool = False


class SumTask(vf.Task[SumData, vf.State, SumTaskConfig]):
    @vf.reward(weight=0.75)
    async def value(self, trace: vf.Trace) -> float:
        said = trace.last_reply.split() if not self.config.strict else [trace.last_reply]
        return float(str(self.data.answer) in said)

    @vf.reward(weight=0.25)
    async def alone(self, task: SumData, trace: vf.Trace) -> float:
        assert trace.messages[0].role == "system"
        return float((trace.assistant_messages[-1].content or "") == str(task.answer))

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.transcript))


class SumConfig(vf.TasksetConfig):
    task: SumTaskConfig = SumTaskConfig()
    most: int = 10


class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for number in range(200):
            a, b = number % self.config.most, number
            data = SumData(prompt=f"What is {a} + {b}?", system_prompt="Answer with a number.", answer=a + b)
            yield SumTask(data, self.config.task)
