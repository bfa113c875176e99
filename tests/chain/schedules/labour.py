"""Money, weights, seats, submissions."""

from __future__ import annotations

from hypothesis import strategies as st

from protocol.identity import Key
from tests.chain.model.books import EPOCHS_TO_MATURE, Place
from tests.chain.model.work import Turn
from tests.chain.schedules.choices import Choices, amounts, anyone, mostly, nodes, often, pick, runs
from tests.chain.twins.people import FOREVER, NODES, OPERATORS, TRAINERS, VALIDATORS
from tests.chain.twins.wire import OUT_OF_REACH


class Labour(Choices):
    # ---- money -----------------------------------------------------------------------------------------------------

    @often(1, by=anyone, to=anyone, amount=st.sampled_from([0, 1, 17, 100, 5000]))
    def deposit(self, by: Key, to: Key, amount: int) -> None:
        self.twins.deposit(by, to.address, amount)

    @often(2, by=st.sampled_from([*OPERATORS, *VALIDATORS]), amount=amounts, back=amounts, late=st.booleans())
    def stake_goes(self, by: Key, amount: int, back: int, late: bool) -> None:
        self.twins.unbond(by, amount)
        self.twins.rebond(by, back)
        if late and self.twins.model.account(by.address).leaving:
            self._wait_for(self.twins.model.account(by.address).ready_at)
        self.twins.withdraw(by)

    @often(2, by=anyone, run=st.sampled_from([1, 2, 3, 9]), amount=amounts)
    def fund(self, by: Key, run: int, amount: int) -> None:
        self.twins.fund(by, run, amount)

    @often(1, run=runs, amount=st.sampled_from([0, 1, 100, 400]), right=mostly, on=st.booleans(), other=anyone)
    def owner_announces(self, run: int, amount: int, right: bool, on: bool, other: Key) -> None:
        by = self._owner(run) if right else other
        if on:
            self.twins.defund(by, run, amount)
        else:
            self.twins.pause(by, run, amount > 100)

    @often(1, run=runs, other=anyone, right=mostly, late=st.booleans())
    def collect(self, run: int, other: Key, right: bool, late: bool) -> None:
        if late:
            self._wait_for(self._run(run).defunded_from)
        self.twins.collect(self._owner(run) if right else other, run)

    @often(1, run=runs, amount=st.sampled_from([10, 100, 400]), early=st.integers(0, 1))
    def owner_takes_out(self, run: int, amount: int, early: int) -> None:
        self.twins.defund(self._owner(run), run, amount)
        self._wait_for(self._run(run).defunded_from - early)
        self.twins.collect(self._owner(run), run)

    @often(1, by=anyone, run=st.sampled_from([1, 2, 3, 9]), amount=st.sampled_from([0, 5, 60]))
    def fund_vouchers(self, by: Key, run: int, amount: int) -> None:
        self.twins.fund_vouchers(by, run, amount)

    @often(
        3, run=runs, by=anyone, who=st.sampled_from([*VALIDATORS, VALIDATORS[0], OPERATORS[0]]),
        more=st.sampled_from([0, 1, 5, 9, 30, 200]), signer=st.sampled_from(["trainer"] * 4 + ["owner", "anyone"]),
    )  # fmt: skip
    def redeem(self, run: int, by: Key, who: Key, more: int, signer: str) -> None:
        """A voucher of so much more than was paid; or the same again."""
        total = self._run(run).redeemed.get(who.address, 0) + more
        signers = {"trainer": self._trainer(run), "owner": self._owner(run), "anyone": by}
        self.twins.redeem(by, run, who.address, total, signers[signer])

    # ---- weights ---------------------------------------------------------------------------------------------------

    @often(2, run=runs, right=mostly, ahead=mostly, other=anyone)
    def publish(self, run: int, right: bool, ahead: bool, other: Key) -> None:
        step = len(self._run(run).publications) + (0 if ahead else 1)
        self.twins.publish(self._trainer(run) if right else other, run, step)

    @often(1, run=runs, by=anyone, back=st.sampled_from([0, 0, 0, 1, -1]))
    def draw(self, run: int, by: Key, back: int) -> None:
        self.twins.draw(by, run, max(0, len(self._run(run).publications) - 1 - back))

    @often(1, run=runs, by=anyone, missed=st.integers(OUT_OF_REACH - 1, OUT_OF_REACH + 1), again=mostly)
    def draw_late(self, run: int, by: Key, missed: int, again: bool) -> None:
        """The block that a beacon comes from is just within reach, or no longer."""
        step = len(self._run(run).publications)
        self.twins.publish(self._trainer(run), run, step)
        if len(self._run(run).publications) > step:
            self.twins.wait_for_blocks(missed)
            self.twins.compare()
            self.twins.draw(by, run, step)
            if again:
                self.twins.draw(by, run, step)
                self.twins.wait_until(self.twins.now + 1)
                self._submit(run, NODES[0], [3], "")

    @often(
        2, run=runs, to=st.sampled_from([*TRAINERS, *TRAINERS, OPERATORS[0]]), right=mostly, other=anyone, wait=mostly
    )
    def appoint(self, run: int, to: Key, right: bool, other: Key, wait: int) -> None:
        """Who was the trainer tries on; the second after it is over, and before."""
        former = self._trainer(run)
        self.twins.appoint(self._owner(run) if right else other, run, to.address)
        if appointed := self._run(run).appointed:
            self._wait_for(appointed[-1][0] - (not wait))
            self.twins.publish(former, run, len(self._run(run).publications))

    # ---- seats -----------------------------------------------------------------------------------------------------

    @often(3, run=runs, node=nodes, which=pick, hardware=st.integers(0, 2), valid=st.sampled_from("vvvvvex"))
    def join(self, run: int, node: Key, which: int, hardware: int, valid: str) -> None:
        """Valid, expired, or a consent for another run."""
        by = OPERATORS[which % 2]
        if valid == "v":
            self.twins.join(by, run, node, hardware)
        elif valid == "e":
            self.twins.join(by, run, node, hardware, deadline=self.twins.now)
        else:
            self.twins.join(by, run, node, hardware, for_run=run % 3 + 1)

    @often(1, run=runs, node=nodes, by=st.sampled_from([*OPERATORS, *OPERATORS, VALIDATORS[0]]))
    def leave(self, run: int, node: Key, by: Key) -> None:
        self.twins.leave(by, run, node.address)

    @often(1, run=runs, node=nodes, right=mostly, other=anyone)
    def ban(self, run: int, node: Key, right: bool, other: Key) -> None:
        self.twins.ban(self._owner(run) if right else other, run, node.address)

    @often(2, run=runs, node=nodes, new=nodes, right=mostly, other=anyone, valid=st.sampled_from("vvvvvex"))
    def rotate(self, run: int, node: Key, new: Key, right: bool, other: Key, valid: str) -> None:
        if right:
            node, new = self._seated(run, node), self._unseated(run, new)
        by = self._person(self._run(run).seat(node.address).operator) if right else other
        if valid == "v":
            self.twins.rotate(by, run, node.address, new)
        elif valid == "e":
            self.twins.rotate(by, run, node.address, new, deadline=self.twins.now)
        else:
            self.twins.rotate(by, run, node.address, new, for_run=run % 3 + 1)

    @often(
        2, run=runs, node=nodes, to=st.sampled_from([*OPERATORS, VALIDATORS[4]]), right=mostly, other=anyone,
        lasting=st.sampled_from([FOREVER, 1, 2, 2]),
    )  # fmt: skip
    def hand_over(self, run: int, node: Key, to: Key, right: bool, other: Key, lasting: int) -> None:
        """The offer may end in the second in which it is accepted, or a second before."""
        by = self._person(self._run(run).seat(node.address).operator) if right else other
        self.twins.offer(by, run, node.address, to.address, min(FOREVER, self.twins.now + lasting))
        self.twins.accept(to if right else other, run, node.address)

    @often(2, which=pick, late=st.booleans(), by=anyone)
    def release(self, which: int, late: bool, by: Key) -> None:
        leaving = [(n, seat) for n, seat in self._seats() if seat.until and seat.locked] or self._seats()
        run, seat = leaving[which % len(leaving)]
        if late and seat.until:
            self._wait_for(seat.until + self._run(run).policy.span)
        self.twins.release(by, run, seat.node)

    # ---- submissions -----------------------------------------------------------------------------------------------

    def _turn(self, run: int, node: Key, fault: str) -> Turn:
        """The next one of a node; or with a wrong number, beacon, or step (left behind, or still to come)."""
        r = self._run(run)
        seat = r.seat(node.address)
        step = max(0, len(r.publications) - 1 - {"s": 1, "t": -1}.get(fault, 0))
        sequence = (seat.next if step == seat.step else 0) + (fault == "n")
        known = step < len(r.publications) and fault != "b"
        return Turn(step, sequence, self.twins.beacon(run, step) if known else bytes(32))

    def _submit(self, run: int, node: Key, sizes: list[int], fault: str) -> None:
        turn = self._turn(run, node, fault)
        items = [(bytes([turn.sequence % 256, i]) * 16, size) for i, size in enumerate(sizes)]
        self.twins.submit(node, run, turn, items)

    @often(
        7, run=runs, node=st.sampled_from(NODES[:2]), size=st.integers(1, 25), old_key=st.sampled_from([False] * 9 + [True])
    )  # fmt: skip
    def submit(self, run: int, node: Key, size: int, old_key: bool) -> None:
        self._submit(run, node if old_key else self._worker(run, node), [size], "")

    @often(4, run=runs, node=nodes, sizes=st.lists(st.integers(0, 12), max_size=4), fault=st.sampled_from("     nbst"))
    def submit_many(self, run: int, node: Key, sizes: list[int], fault: str) -> None:
        self._submit(run, node, sizes, fault)

    @often(1, run=runs, size=st.integers(20, 45), two=st.booleans())
    def submit_much(self, run: int, size: int, two: bool) -> None:
        self._submit(run, NODES[0], [size, size] if two else [size], "")

    @often(1, run=runs, node=nodes, fault=st.sampled_from("     nbst"), times=st.integers(1, 3))
    def skip(self, run: int, node: Key, fault: str, times: int) -> None:
        for _ in range(times):
            self.twins.skip(node, run, self._turn(run, node, fault))

    @often(4, which=pick, late=mostly, by=anyone)
    def claim(self, which: int, late: bool, by: Key) -> None:
        """Mostly when the units of the first submission have just matured."""
        earning = [(n, seat) for n, seat in self._seats() if any(w.place == Place.SEAT for w in seat.submissions)]
        run, seat = (earning or self._seats())[which % len(earning or self._seats())]
        waiting = [w for w in seat.submissions if w.place == Place.SEAT]
        if late and waiting:
            self._wait_for(self._maturity(self._run(run), waiting[0].time, EPOCHS_TO_MATURE - which % 3 // 2))
        self.twins.claim(by, run, seat.node)
