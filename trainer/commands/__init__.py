"""`murmur trainer …`: parse, call, print.

`runs.py` trains and serves the hub, `solo.py` trains without a chain; `models.py` brings models in and out, `questions.py` tasks, and how
a model does on them; `plan.py`, `looks.py` and `doctor.py` tell, the last by the list in `checks.py`; `recalibrating.py` replaces a running run's calibration. `follow.py` is what torchrun's other processes do.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.shell.cli import group
from trainer.commands import doctor, looks, models, questions, recalibrating, runs
from trainer.commands.plan import plan
from trainer.commands.solo import solo

app = group("Train the policy from validated rollouts, and run the hub that collects them.")
hub = group("The hub's own process; `murmur trainer run` starts it by itself.")
app.add_typer(hub, name="hub")
_COMMANDS: dict[str, Callable[..., None]] = {
    "plan": plan, "doctor": doctor.doctor, "solo": solo, "status": looks.status, "logs": looks.logs, "samples": looks.samples, "page": looks.page, "run": runs.run, "resume": runs.resume,
    "preset": models.preset, "eval": questions.evaluate, "export": models.export, "import": models.import_,
    "filter": questions.filter_, "probe": questions.probe, "tasks": questions.tasks, "tiny": models.tiny,
    "recalibrate": recalibrating.recalibrate,
}  # fmt: skip
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
hub.command("start")(runs.hub_start)
hub.command("rebuild")(runs.hub_rebuild)
