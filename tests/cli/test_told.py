"""A payment is made once, however the command ends that made it, until one has ended well: only then the user was told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint
from swarm.world import TOKEN, World

from protocol.chain import Chain
from protocol.chain.sender import Sender
from protocol.identity import Key, save_keystore
from tests.cli.conftest import PASSWORD, Console, Ended

BOB = Key.generate().address
MURMUR = "import sys; from protocol.shell import cli; sys.argv = ['murmur', *sys.argv[1:]]; cli.main()"


class Payment:
    """`murmur wallet send BOB 5`, as often as it is given."""

    def __init__(self, world: World, console: Console, endpoint: FaultyEndpoint) -> None:
        key, keystore = Key.generate(), console.folder / "owner.json"
        save_keystore(key, keystore, PASSWORD, chain_id=31337)
        world.anvil.give(key.address, TOKEN)
        world.owner.send(world.chain.transfer_tokens(key.address, 100 * TOKEN))
        self._world, self._console = world, console
        self._before = world.chain.token_balance(BOB)
        self.endpoint = endpoint
        contract = world.chain.runs.address
        self.words = ["wallet", "send", BOB, "5", "--keystore", keystore, "--contract", contract, "--rpc", endpoint.url]

    def give(self, *more: str) -> Ended:
        return self._console.murmur(*self.words, *more)

    def start(self, **how: int) -> subprocess.Popen[bytes]:
        """The same in a process of its own."""
        words = [*map(str, self.words), "--yes"]
        return subprocess.Popen([sys.executable, "-c", MURMUR, *words], stdin=subprocess.DEVNULL, **how)

    @property
    def made(self) -> int:
        return (self._world.chain.token_balance(BOB) - self._before) // (5 * TOKEN)


@pytest.fixture
def faulty(world: World):  # type: ignore[no-untyped-def]
    endpoint = FaultyEndpoint(world.anvil.rpc)
    yield endpoint
    endpoint.close()


@pytest.fixture
def payment(world: World, console: Console, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch) -> Payment:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    return Payment(world, console, faulty)


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def once_then_again(payment: Payment) -> None:
    """Given again it is the same payment, and after that another one."""
    again = payment.give("--yes")
    assert (again.code, payment.made) == (0, 1), again.err
    assert payment.give("--yes").code == 0
    assert payment.made == 2


def test_an_error_after_the_payment_does_not_tell_of_it(payment: Payment) -> None:
    sent: list[str] = []

    def fault(method: str, _: object) -> None:
        sent.extend(["sent"] if method == "eth_sendRawTransaction" else [])
        if sent and method == "eth_call":
            raise Drop

    payment.endpoint.fault = fault
    assert payment.give("--yes").code != 0
    payment.endpoint.fault = lambda *_: None
    once_then_again(payment)


@pytest.mark.parametrize("second", ["no terminal", "interrupted"])
def test_killed_and_then_ended_otherwise_it_is_paid_once(
    payment: Payment, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Sender, "_result", interrupt)
        assert payment.give("--yes").code == 130
    with monkeypatch.context() as patch:
        if second == "interrupted":
            patch.setattr(Sender, "send", interrupt)
        assert (
            payment.give(*["--yes"] * (second == "interrupted")).code == {"no terminal": 2, "interrupted": 130}[second]
        )
    once_then_again(payment)


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [("n\n", 2, "nothing was sent"), ("\n", 2, "nothing was sent"), ("\x04", 130, "interrupted")],
    ids=["no", "Enter", "Ctrl-D"],
)
def test_who_says_no_hears_that_nothing_was_sent(
    payment: Payment, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, said: str
) -> None:
    keyboard, terminal = os.openpty()
    os.write(keyboard, typed.encode())
    with open(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        done = payment.give()
    os.close(keyboard)
    assert (done.code, payment.made) == (code, 0) and done.err.rstrip().endswith(f"Send it? [y/N]:{said}"), done.err


def test_interrupted_it_says_what_may_land(payment: Payment, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Sender, "send", interrupt)
        nothing = payment.give("--yes")
    assert (nothing.code, nothing.err.splitlines()[-1]) == (130, "interrupted"), "nothing was signed"
    with monkeypatch.context() as patch:
        patch.setattr("protocol.chain.sender.push", interrupt)
        signed = payment.give("--yes")
    assert signed.code == 130 and f"it may land or have landed: sending 5 tokens to {BOB}" in signed.err, signed.err
    once_then_again(payment)


def test_interrupted_after_the_payment_it_is_paid_once(payment: Payment, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[Chain, str], int] = Chain.token_balance
    with monkeypatch.context() as patch:
        patch.setattr(Chain, "token_balance", lambda chain, who: interrupt() if who == BOB else real(chain, who))
        assert payment.give("--yes").code == 130
    once_then_again(payment)


def test_a_real_signal_after_the_payment(payment: Payment) -> None:
    sent, asked, goes_on = list[str](), threading.Event(), threading.Event()

    def fault(method: str, _: object) -> None:
        sent.extend(["sent"] if method == "eth_sendRawTransaction" else [])
        if sent and method == "eth_call":
            asked.set()
            goes_on.wait(10)

    payment.endpoint.fault = fault
    process = payment.start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert asked.wait(60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    goes_on.set()
    assert process.returncode == 130
    payment.endpoint.fault = lambda *_: None
    once_then_again(payment)


def test_where_nobody_reads_the_output_nobody_was_told(payment: Payment) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    payment.start(stdout=writing, stderr=subprocess.DEVNULL).communicate(timeout=60)
    os.close(writing)
    assert payment.made == 1
    once_then_again(payment)
