"""`node …`: what a contributor types, what it answers in every state, and what it refuses without harm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from swarm.pace import Patience
from swarm.world import TOKEN, World

from node.contributor import next_step
from node.contributor import submission_log as states
from node.contributor.submission_log import SubmissionLog
from protocol.chain.types import Stage, State
from protocol.identity import Key
from protocol.shell.home import Home, write_json
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt
from tests.cli.conftest import PASSWORD, Console, Contributor, init_options

# ---- init --------------------------------------------------------------------------------------------------------------


def test_init_makes_two_keys_and_settings_and_says_what_comes_next(
    world: World, console: Console, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    done = console.node(
        "init", *init_options(world), "--home", tmp_path / "home", "--password-file", tmp_path / "password"
    )
    assert done.code == 0, done.err
    assert "next:" in done.out
    for name in ("node", "operator"):
        keystore = tmp_path / "home/keys" / f"{name}.json"
        assert keystore.stat().st_mode & 0o077 == 0
    shown = console.node("config", "show", "--home", tmp_path / "home", "--json").json
    assert shown["chain.run"]["value"] == world.run
    assert shown["chain.chain_id"]["value"] == 31337


def test_init_without_an_operator_speaks_of_one_key(world: World, console: Console, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(PASSWORD + "\n")
    done = console.node(
        "init", "--no-operator", *init_options(world), "--home", tmp_path / "home", "--password-file", tmp_path / "password"
    )  # fmt: skip
    assert done.code == 0, done.err
    last = done.out.strip().splitlines()[-1]
    assert "both" not in last
    assert "--operator-keystore" in last


def test_init_never_touches_a_home_that_is_there(contributor: Contributor) -> None:
    files = {path: path.read_bytes() for path in contributor.path.rglob("*") if path.is_file()}
    done = contributor.console.node("init", *init_options(contributor.world), "--home", contributor.path)
    assert done.code == 3
    assert "exists" in done.err
    assert files == {path: path.read_bytes() for path in contributor.path.rglob("*") if path.is_file()}


def test_an_interrupted_init_can_be_repeated(contributor: Contributor) -> None:
    """It had made the node's key, and then the terminal was closed: the key is taken up, not refused."""
    contributor.home.config.unlink()
    contributor.home.keystore("operator").unlink()
    done = contributor.console.node("init", *init_options(contributor.world), "--home", contributor.path, "--json")
    assert done.code == 0, done.err
    assert done.json["node"] == contributor.node
    assert done.json["operator"] != contributor.operator


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"rpc": "http://127.0.0.1:9"}, 4, "no answer"),
        ({"contract": "0x" + "11" * 20}, 4, "no such contract"),
        ({"contract": "nonsense"}, 3, "no contract address"),
        ({"run": 77}, 3, "no run 77"),
        ({"run": "many"}, 2, "run"),
    ],
)
def test_init_refuses_what_cannot_be_right_and_makes_nothing(
    world: World, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, object],
    code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    done = console.node("init", *init_options(world, **change), "--home", tmp_path / "home")
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "home").exists()


# ---- refusals that all commands share ------------------------------------------------------------------------------------

EVERY = [
    ["start"], ["status"], ["stake", "--yes"], ["leave", "--yes"], ["unstake", "1", "--yes"], ["withdraw"], ["claim"],
    ["submissions"], ["config", "show"], ["appeal", "00", "--yes"], ["rotate", "--yes"], ["rebond", "1", "--yes"],
    ["offer", "nobody", "--yes"], ["accept", "0x" + "11" * 20, "--yes"],
]  # fmt: skip
WITH_KEYS = [
    ["start"], ["stake", "--yes"], ["leave", "--yes"], ["unstake", "1", "--yes"], ["withdraw"], ["rebond", "1", "--yes"],
]  # fmt: skip
WITH_CHAIN = [["status"], ["stake", "--yes"], ["leave", "--yes"], ["unstake", "1", "--yes"], ["withdraw"], ["claim"],
              ["appeal", "00", "--yes"], ["start"]]  # fmt: skip


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_a_missing_home_names_the_command_that_makes_one(console: Console, tmp_path: Path, command: list[str]) -> None:
    done = console.node(*command, "--home", tmp_path / "nowhere")
    assert done.code == 3
    assert f"node join CARD --home {tmp_path / 'nowhere'}" in done.err
    assert not (tmp_path / "nowhere").exists(), "looking must not make folders"


@pytest.mark.parametrize("command", WITH_KEYS, ids=" ".join)
def test_a_wrong_password_is_said_and_never_shown(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", "wrong-canary")
    done = contributor.run(*command)
    assert done.code == 3
    assert "wrong password" in done.err
    assert "wrong-canary" not in done.out + done.err


@pytest.mark.parametrize("command", WITH_KEYS, ids=" ".join)
def test_without_terminal_and_password_it_ends_at_once(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.delenv("MURMUR_PASSWORD")
    patience = Patience(5)
    done = contributor.run(*command)
    assert (done.code, patience.ended()) == (2, False)
    assert "--password-file" in done.err


def test_a_password_file_is_read_and_beats_the_environment(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    contributor.give()
    monkeypatch.setenv("MURMUR_PASSWORD", "wrong")
    (tmp_path / "password").write_text(PASSWORD + "\n")
    assert contributor.run("stake", "--yes", "--password-file", tmp_path / "password").code == 0
    done = contributor.run("leave", "--yes", "--password-file", tmp_path / "none")
    assert (done.code, "password file" in done.err) == (3, True)


@pytest.mark.parametrize("command", [["stake"], ["leave"], ["unstake", "1"]], ids=" ".join)
def test_without_terminal_and_yes_nothing_is_sent(contributor: Contributor, command: list[str]) -> None:
    contributor.give()
    if command != ["stake"]:
        contributor.seat()
    if command[0] == "unstake":
        contributor.world.owner.send(contributor.world.chain.deposit(contributor.operator, TOKEN))
    before = contributor.world.chain.block_number()
    done = contributor.run(*command)
    assert done.code == 2
    assert "--yes" in done.err
    assert contributor.world.chain.block_number() == before


@pytest.mark.parametrize("command", WITH_CHAIN, ids=" ".join)
def test_a_dead_endpoint_is_one_sentence_and_one_hint(contributor: Contributor, command: list[str]) -> None:
    config = contributor.home.config
    config.write_text(config.read_text().replace(contributor.world.anvil.rpc, "http://127.0.0.1:9"))
    done = contributor.run(*command)
    assert done.code == 4
    lines = done.err.strip().splitlines()
    assert len(lines) == 2, done.err
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("  try: ")


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("chain_id = 31337", "chain_id = 8453", 4, "not 8453"),
        ("run = 1", "run = 99", 3, "no run 99"),
        ("run = 1", "runn = 1", 3, "'chain.run'"),
        ("listen =", "listne =", 3, "'peers.listen'"),
        ("run = 1", "run = 0", 3, "chain.run"),
        ("run = 1", "run = ", 3, "not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(contributor: Contributor, old: str, new: str, code: int, message: str) -> None:
    config = contributor.home.config
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    done = contributor.run("status")
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err


def test_status_shows_the_challenges_that_were_answered(contributor: Contributor) -> None:
    last = {"answered": 3, "time": 1_700_000_000, "side": 1024, "operations_per_second": 68_000_000_000}
    write_json(contributor.home.challenges, last)
    assert contributor.status()["matrix_challenges"] == last
    assert "challenged 3 answered, the last" in (shown := contributor.run("status").out)
    assert "0.068 int8 TOPS by itself" in shown


def test_a_contract_that_is_not_there_is_named(contributor: Contributor) -> None:
    config = contributor.home.config
    config.write_text(config.read_text().replace(contributor.world.chain.runs.address, Key.generate().address))
    done = contributor.run("status")
    assert (done.code, "no such contract" in done.err) == (4, True)


def test_config_show_says_where_each_value_came_from(contributor: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MURMUR_ENGINE__THREADS", "3")
    shown = contributor.run("config", "show", "--origin").out.splitlines()
    assert any(line.startswith("engine.threads = 3") and "environment MURMUR_ENGINE__THREADS" in line for line in shown)
    assert any(line.startswith("chain.run = ") and str(contributor.home.config) in line for line in shown)
    assert any(line.startswith("chain.timeout_seconds = ") and line.endswith("# default") for line in shown)


# ---- stake, leave, withdraw ------------------------------------------------------------------------------------------------


def test_too_few_tokens_are_a_matter_of_funds(contributor: Contributor) -> None:
    contributor.give(tokens=99)
    done = contributor.run("stake", "--yes")
    assert done.code == 6
    assert contributor.operator in done.err
    assert contributor.world.chain.account(contributor.operator).active == 0


def test_too_little_gas_money_is_a_matter_of_funds(contributor: Contributor) -> None:
    contributor.give()
    contributor.world.anvil.give(contributor.operator, 0)
    done = contributor.run("stake", "--yes")
    assert done.code == 6
    assert "ETH" in done.err


def test_staking_twice_costs_once(contributor: Contributor) -> None:
    contributor.give()
    assert contributor.run("stake", "--yes").code == 0
    again = contributor.run("stake", "--yes")
    assert again.code == 0
    assert "already" in again.out
    assert contributor.world.chain.account(contributor.operator).active == 100 * TOKEN
    assert contributor.run("stake", "10", "--yes").code == 0, "more may be staked, for an appeal"
    assert contributor.world.chain.account(contributor.operator).active == 110 * TOKEN


def test_a_banned_node_does_not_stake_for_nothing(contributor: Contributor) -> None:
    from protocol.chain.calls import Call

    contributor.give()
    contributor.seat()
    world = contributor.world
    world.owner.send(Call("banning", world.chain.runs.functions.ban(world.run, contributor.node)))
    before = world.chain.account(contributor.operator)
    done = contributor.run("stake", "--yes")
    assert done.code == 9
    assert world.chain.account(contributor.operator) == before


def test_the_way_out_pays_everything_back(contributor: Contributor) -> None:
    contributor.give()
    chain = contributor.world.chain
    assert contributor.run("stake", "--yes").code == 0
    seated = contributor.run("unstake", "100", "--yes")
    assert (seated.code, "node leave" in seated.err) == (6, True)
    assert contributor.run("leave", "--yes").code == 0
    locked = contributor.run("unstake", "100", "--yes")
    assert (locked.code, "still locked" in locked.err) == (6, True), "work can still be challenged"
    assert locked.err.endswith("try: give the same command again then\n")
    contributor.world.anvil.advance(chain.policy(contributor.world.run).span)
    assert contributor.run("unstake", "100", "--yes").code == 0
    early = contributor.run("withdraw")
    assert (early.code, "TooEarly" in early.err) == (4, True)
    contributor.world.anvil.advance(chain.withdrawal_delay())
    assert "100 MUR" in contributor.run("withdraw").out
    assert chain.token_balance(contributor.operator) == 200 * TOKEN


@pytest.mark.parametrize("amount", ["0", "-1", "some", "0.0000000000000000001", "nan"])
def test_an_amount_that_is_none_is_refused_before_a_password_is_asked_for(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch, amount: str
) -> None:
    contributor.give()
    monkeypatch.delenv("MURMUR_PASSWORD")
    for command in ("unstake", "rebond", "stake"):
        done = contributor.console.node(command, "--home", contributor.path, "--yes", "--", amount)
        assert (done.code, "is no amount of tokens" in done.err) == (2, True), done.err
    assert contributor.world.chain.account(contributor.operator).active == 0


# ---- status and submissions ------------------------------------------------------------------------------------------------


def submitted(contributor: Contributor, sequence: int = 0, units: int = 500) -> SubmissionRef:
    """A submission on chain that the node's log knows."""
    world = contributor.world
    ref = world.submit(contributor.key("node"), 0, sequence, os.urandom(32), units)
    kept = SubmissionLog(contributor.home.data / "submissions.sqlite")
    submission = ref.submission_id(world.run)
    kept.add(ref, submission, units, world.chain.block().time)
    kept.advance(submission, states.COMMITTED)
    kept.close()
    return ref


def told(contributor: Contributor, ref: SubmissionRef, outcome: Outcome, found: str = "sampling") -> str:
    """Notes a verdict as the running node would; the submission id."""
    world, validator = contributor.world, Key.generate()
    domain, submission = world.chain.domain, ref.submission_id(world.run)
    rule = "" if outcome == Outcome.ACCEPT else found
    details = Details(
        protocol=1, chain_id=31337, contract=domain.contract, run=world.run, submission=submission.hex(), node=ref.node, step=ref.step,
        sequence=ref.sequence, root=ref.root.hex(), units=500, spec="00" * 32, outcome=int(outcome), rule=rule,
        measured="0.31" if rule else "", threshold="0.125" if rule else "", detail="row 3, token 5: margin" if rule else "",
        samples="0" * 63 + "8", sequences_checked=8, proofs_checked=9, tokens_checked=70, time=1,
    )  # fmt: skip
    kept = SubmissionLog(contributor.home.data / "submissions.sqlite")
    kept.advance(
        submission, {1: states.ACCEPTED, 2: states.SOFT, 3: states.HARD}[int(outcome)],
        receipt=Receipt.issue(details, validator, domain).encode().decode(),
    )  # fmt: skip
    kept.close()
    return submission.hex()


def test_status_before_anything_was_done_says_stake(contributor: Contributor) -> None:
    found = contributor.status()
    assert (found["role"], found["running"], found["next"]) == ("none", False, "node stake")
    assert found["operator"] == contributor.operator
    assert contributor.run("status").out.rstrip().endswith(f"next: node stake --home {contributor.path}")


def test_status_of_a_seated_node_says_start(contributor: Contributor) -> None:
    contributor.seat()
    found = contributor.status()
    assert (found["role"], found["running"], found["next"]) == ("active", False, "node start")
    assert (found["stake"], found["locked"]) == (str(100 * TOKEN), str(100 * TOKEN))


def test_what_comes_next_is_typed_for_the_home_that_was_given(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributor.seat()
    contributor.world.publish(0)
    submission = told(contributor, submitted(contributor), Outcome.HARD)
    for words in (["status"], ["rewards"]):
        assert f"next: node start --home {contributor.path}" in contributor.run(*words).out.splitlines()
    assert (
        f"node appeal {submission[:12]} --home {contributor.path}, where"
        in contributor.run("submissions", submission).out
    )
    monkeypatch.setattr("protocol.shell.home.default_home", lambda role: contributor.path)
    assert "next: node start" in contributor.run("status").out.splitlines()


@pytest.mark.parametrize(
    "step, typed",
    [
        ("node unstake 12.5", "node unstake 12.5 --home x"),
        ("nothing before 2026-11-26; then node claim", "nothing before 2026-11-26; then node claim --home x"),
        ("node start: what is committed", "node start --home x: what is committed"),
        ("nothing; the running node brings it to the hub", "nothing; the running node brings it to the hub"),
        ("", ""),
    ],
)
def test_only_the_commands_of_a_step_name_the_home(step: str, typed: str) -> None:
    assert next_step.as_typed(step, "--home x") == typed
    assert next_step.as_typed(step, "") == step


def test_status_without_gas_money_says_where_to_send_some(contributor: Contributor) -> None:
    contributor.seat()
    contributor.world.anvil.give(contributor.node, 0)
    assert contributor.node in contributor.status()["next"]


def test_status_of_a_running_node_shows_what_it_does(contributor: Contributor) -> None:
    contributor.seat()
    contributor.works(state="waiting", reason="the run is paused by its owner", step=3)
    assert contributor.status()["running"]
    shown = contributor.run("status").out
    assert "now        waiting (the run is paused by its owner, step 3)\n" in shown
    assert "the run is paused by its owner" in shown


def test_another_role_in_its_home_is_not_the_node(contributor: Contributor) -> None:
    """Its process is alive and writes the same status.json: the page and `status` would say that the node earns."""
    contributor.seat()
    with Home(contributor.path, "relay").lock():
        Home(contributor.path, "relay").write_status(state="serving")
        found = contributor.status()
    assert (found["running"], found["doing"], found["earning"]["state"]) == (False, None, "not earning")
    with contributor.home.lock():
        write_json(contributor.path / "status.json", {"pid": os.getppid(), "at": time.time(), "state": "serving"})
        assert contributor.status()["doing"] is None, "nor while the node starts"


def test_a_process_that_is_gone_does_not_run(contributor: Contributor) -> None:
    import subprocess

    contributor.seat()
    gone = subprocess.Popen(["true"])
    gone.wait()
    write_json(contributor.path / "status.json", {"pid": gone.pid, "at": time.time(), "state": "generating"})
    found = contributor.status()
    assert (found["running"], found["doing"], found["next"]) == (False, None, "node start")


def test_status_counts_work_and_rewards_and_says_claim(contributor: Contributor) -> None:
    contributor.seat()
    contributor.world.publish(0)
    ref = submitted(contributor)
    told(contributor, ref, Outcome.ACCEPT)
    contributor.works(state="generating", step=0)
    found = contributor.status()
    assert (found["submissions"], found["ready_units"], found["pending_units"]) == ({"accepted": 1}, 0, 500)
    window = contributor.world.chain.policy(contributor.world.run).window
    contributor.world.anvil.advance(window + window // 5 + 1)
    assert contributor.status()["next"] == "node claim"
    done = contributor.run("claim", "--json").json
    assert (done["units"], done["amount"], done["operator"]) == (500, str(5 * TOKEN), contributor.operator)
    nothing = contributor.run("claim", "--json").json
    assert (nothing["amount"], nothing["transaction"]) == ("0", None)


@pytest.mark.parametrize("outcome", [Outcome.SOFT, Outcome.HARD])
def test_a_verdict_is_explained_and_says_what_can_be_done(contributor: Contributor, outcome: Outcome) -> None:
    contributor.seat()
    contributor.world.publish(0)
    submission = told(contributor, submitted(contributor), outcome)
    contributor.works(state="generating", step=0)
    assert contributor.status()["next"] == "node submissions"
    listed = contributor.run("submissions").out
    assert "sampling: row 3, token 5: margin" in listed
    header, row = listed.splitlines()
    assert (header.index("state"), header.index("rule")) == (row.index(outcome.name.lower()), row.index("sampling"))
    shown = contributor.run("submissions", submission[:10]).out
    for text in (
        f"verdict   {outcome.name.lower()},",
        "0.31",
        "0.125",
        "row 3, token 5",
        "checked   8 samples",
        "(docs/rules.md#rule-sampling)",
        f"node appeal {submission[:12]}",
    ):
        assert text in shown
    row = contributor.run("submissions", submission[:10], "--json").json["submissions"][0]
    assert row["receipt"]["details"]["measured"] == "0.31"


def test_a_reward_that_was_claimed_is_told_from_the_validators_own(contributor: Contributor) -> None:
    contributor.seat()
    contributor.world.publish(0)
    submission = told(contributor, submitted(contributor), Outcome.SOFT, "reward")
    shown = contributor.run("submissions", submission[:10]).out
    assert "claimed   0.31, the validator's own 0.125\n" in shown and "threshold" not in shown


def test_every_state_of_a_submission_says_what_comes_next(contributor: Contributor) -> None:
    contributor.seat()
    contributor.world.publish(0)
    refs = [submitted(contributor, sequence) for sequence in range(4)]
    kept = SubmissionLog(contributor.home.data / "submissions.sqlite")
    for ref, state in zip(refs, (states.COMMITTED, states.STORED, states.LOST, states.ACCEPTED), strict=True):
        kept.advance(ref.submission_id(contributor.world.run), state)
    kept.close()
    rows = contributor.run("submissions", "--json").json["submissions"]
    assert {row["state"] for row in rows} == {"committed", "stored", "lost", "accepted"}
    assert all(row["next"] for row in rows)
    assert contributor.run("submissions", "zz").code == 2
    assert contributor.run("submissions", "").code == 2


# ---- appeal --------------------------------------------------------------------------------------------------------------


def challenged(contributor: Contributor, *, hard: bool) -> tuple[SubmissionRef, str]:
    world = contributor.world
    contributor.seat()
    world.publish(0)
    validator = Key.generate()
    world.seat_validator(validator)
    ref = submitted(contributor)
    if hard:
        world.accuse(validator, ref)
    else:
        world.sender(validator).send(world.chain.challenge(world.run, [ref], b"\x0e" * 32))
    return ref, told(contributor, ref, Outcome.HARD if hard else Outcome.SOFT)


@pytest.mark.parametrize("hard", [False, True])
def test_an_appeal_shows_what_is_at_stake_and_opens_the_vote(contributor: Contributor, hard: bool) -> None:
    ref, submission = challenged(contributor, hard=hard)
    world = contributor.world
    asked = contributor.run("appeal", submission[:10])
    assert asked.code == 2
    for text in ("10 MUR", "hard" if hard else "soft", "1 h", "ETH"):
        assert text in asked.err
    assert world.chain.state(world.run, ref) == State.CHALLENGED
    assert contributor.run("appeal", submission, "--yes").code == 0
    assert world.chain.state(world.run, ref) == State.APPEALED
    again = contributor.run("appeal", submission, "--yes")
    assert (again.code, "appealed already" in again.err) == (2, True)


def accused(contributor: Contributor, *validators: Key) -> tuple[SubmissionRef, str]:
    """A submission that each of these validators has accused, one after the other."""
    world = contributor.world
    contributor.seat()
    world.publish(0)
    for validator in validators:
        world.seat_validator(validator)
    ref = submitted(contributor)
    for validator in validators:
        world.accuse(validator, ref)
    return ref, told(contributor, ref, Outcome.HARD)


def stages(contributor: Contributor) -> list[Stage]:
    world = contributor.world
    count = world.chain.seat(world.run, contributor.node).cases
    return [world.chain.case(world.run, contributor.node, number).stage for number in range(1, count + 1)]


def test_an_appeal_answers_every_verdict_on_the_submission(contributor: Contributor) -> None:
    """The chain's own note on a submission names the last case only."""
    liars = Key.generate(), Key.generate()
    _, submission = accused(contributor, *liars)
    asked = contributor.run("appeal", submission)
    assert asked.code == 2
    assert all(liar.address in asked.err for liar in liars)
    assert contributor.run("appeal", submission, "--yes").code == 0
    assert stages(contributor) == [Stage.APPEALED, Stage.APPEALED]
    again = contributor.run("appeal", submission, "--yes")
    assert (again.code, "appealed already" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("before", "why", "after"),
    [
        (Stage.UPHELD, "revoked", Stage.UPHELD),
        (Stage.UNDECIDED, "no majority", Stage.RETURNED),  # what it was about went over to the hard case
    ],
)
def test_a_hard_verdict_on_soft_work_can_be_appealed_against(
    contributor: Contributor, before: Stage, why: str, after: Stage
) -> None:
    ref, submission = challenged(contributor, hard=False)
    world, policy = contributor.world, contributor.world.chain.policy(contributor.world.run)
    liar = world.senders[world.chain.case(world.run, contributor.node, 1).challenger]
    if before == Stage.UNDECIDED:
        assert contributor.run("appeal", submission, "--yes").code == 0
        world.anvil.advance(policy.vote)
    else:
        world.anvil.advance(policy.appeal)
    liar.send(world.chain.settle(world.run, contributor.node, 1))
    refused = contributor.run("appeal", submission, "--yes")
    assert (refused.code, why in refused.err, stages(contributor)) == (2, True, [before])
    world.accuse(liar.key, ref)
    assert contributor.run("appeal", submission, "--yes").code == 0
    assert stages(contributor) == [after, Stage.APPEALED]


def test_what_cannot_be_appealed_against_is_refused_before_it_costs(contributor: Contributor) -> None:
    ref, submission = challenged(contributor, hard=False)
    world = contributor.world
    world.owner.send(world.chain.deposit(contributor.operator, 10 * TOKEN))
    unchallenged = submitted(contributor, 1).submission_id(world.run).hex()
    done = contributor.run("appeal", unchallenged, "--yes")
    assert (done.code, "not challenged" in done.err) == (2, True)
    unknown = next(each for each in ("00", "77", "ff") if each[0] not in (submission[0], unchallenged[0]))
    assert contributor.run("appeal", unknown, "--yes").code == 2
    world.anvil.advance(3601)
    late = contributor.run("appeal", submission, "--yes")
    assert (late.code, "ended" in late.err) == (2, True)
    assert world.chain.state(world.run, ref) == State.CHALLENGED


# ---- secrets -------------------------------------------------------------------------------------------------------------


def test_no_command_shows_or_writes_a_secret(contributor: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands with all their output and everything they leave in the home, searched for passwords and keys."""
    contributor.give()
    contributor.run("stake", "--yes")
    contributor.world.publish(0)
    submission = told(contributor, submitted(contributor), Outcome.SOFT)
    for command in (
        ["status"], ["status", "--json"], ["submissions"], ["submissions", submission, "--json"], ["claim", "--json"],
        ["config", "show", "--origin"], ["config", "show", "--json"], ["appeal", submission, "--yes"], ["unstake", "500", "--yes"],
        ["leave", "--yes"], ["withdraw"], ["no-such-command"], ["status", "--no-such-option"],
    ):  # fmt: skip
        contributor.run(*command)
    secrets = [PASSWORD.encode()]
    for name in ("node", "operator"):
        key = contributor.key(name).secret
        secrets += [key, key.hex().encode(), key.hex().upper().encode()]
    places = {path: path.read_bytes() for path in contributor.path.rglob("*") if path.is_file()}
    places[Path("what was printed")] = "".join(contributor.console.printed).encode()
    leaks = [(str(path), secret[:4]) for path, data in places.items() for secret in secrets if secret in data]
    assert not leaks
    for path in contributor.path.glob("keys/*.json"):
        assert json.loads(path.read_text())["crypto"]["kdf"] == "scrypt"


def test_every_json_answer_is_one_object(contributor: Contributor) -> None:
    contributor.seat()
    for command in (["status"], ["submissions"], ["claim"], ["config", "show"]):
        done = contributor.run(*command, "--json")
        assert done.code == 0, done.err
        assert isinstance(json.loads(done.out), dict)
