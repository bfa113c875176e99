"""Pay of validators: what the hub promises follows from the receipts it holds, and the Wages contract pays it exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from eth_utils import to_checksum_address
from swarm.anvil import Anvil

from node.validator import pay as wages
from node.validator.pay import Pay
from protocol.chain import Sender
from protocol.errors import BadSignature, ConfigError, InsufficientFunds, TransactionReverted, WrongChain
from protocol.hub import Refused
from protocol.identity import Key
from protocol.role import ChainSettings
from protocol.signing import Voucher
from protocol.verdict import Outcome
from tests.hub.desk import Desk, open_desk, some_file
from tests.world import TOKEN

EACH = TOKEN // 4


@dataclass
class Payroll:
    desk: Desk
    validator: Key

    def __post_init__(self) -> None:
        self._node = self.desk.node()
        self._judged = 0
        world = self.desk.world
        self.settings = ChainSettings(
            rpc=world.anvil.rpc, contract=world.chain.runs.address, chain_id=31337, run=world.run, wages=world.wages
        )

    def judge(self, outcome: Outcome = Outcome.ACCEPT) -> None:
        data = some_file()
        ref = self.desk.commit(self._node, data, sequence=self._judged)
        self._judged += 1
        client = self.desk.client(self.validator)
        client.post_receipt(self.desk.receipt(self.validator, ref, outcome))
        client.post_receipt(self.desk.receipt(self.validator, ref, outcome, measured="another word", threshold="1"))

    def fill(self, amount: int) -> None:
        world = self.desk.world
        world.owner.send(world.chain.approve_tokens(to_checksum_address(world.wages), amount))
        world.owner.send(world.chain.fund_wages(world.wages, world.run, amount))

    def look(self) -> Pay:
        world = self.desk.world
        total, signature = self.desk.client().voucher(self.validator.address, self.desk.key.address)
        chain, run = world.chain, world.run
        redeemed = chain.redeemed(world.wages, run, self.validator.address)
        return Pay(total, redeemed, chain.pot(world.wages, run), signature)

    def redeem(self, pay: Pay | None = None) -> int:
        return wages.redeem(self.sender, self.settings, pay or self.look())

    @property
    def sender(self) -> Sender:
        return self.desk.world.sender(self.validator)


@pytest.fixture
def payroll(anvil: Anvil, tmp_path: Path) -> Iterator[Payroll]:
    with open_desk(anvil, tmp_path, pay=EACH) as desk:
        yield Payroll(desk, desk.validator())


def test_each_judged_work_is_paid_once_whatever_the_verdict(payroll: Payroll) -> None:
    payroll.fill(10 * TOKEN)
    payroll.judge()
    payroll.judge(Outcome.SOFT)
    before = payroll.desk.world.chain.token_balance(payroll.validator.address)
    first = payroll.look()
    assert payroll.redeem(first) == 2 * EACH
    payroll.redeem(first)  # as after a crash: the transaction was sent before, and is not sent again
    with pytest.raises(TransactionReverted, match="ZeroAmount"):
        payroll.redeem(payroll.look())
    payroll.judge()
    assert payroll.look().due == EACH
    assert payroll.redeem() == EACH
    assert payroll.desk.world.chain.token_balance(payroll.validator.address) == before + 3 * EACH


def test_a_pot_that_is_too_small_pays_the_rest_later(payroll: Payroll) -> None:
    payroll.judge()
    payroll.judge()
    with pytest.raises(InsufficientFunds, match="pot is empty"):
        payroll.redeem()
    payroll.fill(EACH + 1)
    assert payroll.redeem() == EACH + 1
    payroll.fill(TOKEN)
    assert payroll.redeem() == EACH - 1
    assert not payroll.look().due


def test_a_rebuilt_hub_promises_the_same(payroll: Payroll) -> None:
    payroll.judge()
    payroll.judge()
    promised, desk = payroll.look().earned, payroll.desk
    desk.database._db.execute("DELETE FROM receipts")
    with pytest.raises(Refused):
        payroll.look()
    desk.hub.rebuild()
    assert payroll.look().earned == promised == 2 * EACH


def test_a_voucher_of_another_key_run_or_amount_is_refused_by_client_and_contract(payroll: Payroll) -> None:
    payroll.fill(TOKEN)
    payroll.judge()
    desk, address = payroll.desk, payroll.validator.address
    run, domain = desk.world.run, desk.world.chain.domain
    forged = {
        "another key": Voucher(run, address, EACH).sign(Key.generate(), domain),
        "another run": Voucher(run + 1, address, EACH).sign(desk.key, domain),
        "another validator": Voucher(run, Key.generate().address, EACH).sign(desk.key, domain),
        "another amount": Voucher(run, address, EACH - 1).sign(desk.key, domain),
    }
    for what, signature in forged.items():
        with pytest.raises(TransactionReverted, match="Denied"):
            payroll.redeem(Pay(EACH, 0, TOKEN, signature))
        desk.hub.voucher = lambda _, s=signature: {"total": str(EACH), "signature": "0x" + s.hex()}  # type: ignore[method-assign]
        with pytest.raises(BadSignature):
            payroll.look()
        assert desk.world.chain.redeemed(desk.world.wages, run, address) == 0, what


def test_strangers_and_unpaid_runs_get_no_voucher(payroll: Payroll, anvil: Anvil, tmp_path: Path) -> None:
    desk, folder = payroll.desk, tmp_path / "unpaid"
    folder.mkdir()
    with pytest.raises(Refused, match="no receipts"):
        desk.client().voucher(Key.generate().address, desk.key.address)
    assert desk.get("vouchers/nobody").status_code == 422
    with open_desk(anvil, folder) as unpaid, pytest.raises(Refused, match="pays nothing"):
        unpaid.client().voucher(payroll.validator.address, unpaid.key.address)


def test_the_wages_contract_must_be_configured_and_be_this_runs(payroll: Payroll) -> None:
    payroll.judge()
    chain, settings = payroll.desk.world.chain, payroll.settings
    with pytest.raises(ConfigError, match="no Wages"):
        wages.wages_of(chain, settings.model_copy(update={"wages": None}))
    with pytest.raises(WrongChain):
        wages.wages_of(chain, settings.model_copy(update={"wages": chain.token.address}))
