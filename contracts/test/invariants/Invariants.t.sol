// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IBonds} from "../../src/interfaces/IBonds.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {IWeights} from "../../src/interfaces/IWeights.sol";
import {IVouchers} from "../../src/interfaces/IVouchers.sol";
import {Ring} from "../../src/Ring.sol";
import {Test} from "../support/Test.sol";
import {Handler} from "./Handler.sol";

/// @title What holds after whatever anybody has done
/// @notice Each has been seen to catch a planted bug: scripts/mutate-contracts --invariants plants them again.
contract InvariantsTest is Test {
    using Ring for uint256;

    uint256 internal constant RUNS = 3;
    Handler internal handler;
    bytes4[] internal _actions;
    IRuns internal runs;
    ICourt internal court;
    IBench internal bench;
    IPolicies internal policies;
    IWeights internal weights;
    IBonds internal bonds;
    IVouchers internal vouchers;
    IERC20 internal token;

    function setUp() public {
        handler = new Handler();
        (runs, court, bonds) = (handler.runs(), handler.court(), handler.bonds());
        (bench, policies, weights) = (handler.bench(), handler.policies(), handler.weights());
        (vouchers, token) = (handler.vouchers(), handler.token());
        bytes4[] memory actions = new bytes4[](24);
        actions[0] = Handler.tick.selector;
        actions[1] = Handler.leap.selector;
        actions[2] = Handler.publishNext.selector;
        actions[3] = Handler.submission.selector;
        actions[4] = Handler.submissionAgain.selector;
        actions[5] = Handler.submissionMuch.selector;
        actions[6] = Handler.skip.selector;
        actions[7] = Handler.dispute.selector;
        actions[8] = Handler.accuse.selector;
        actions[9] = Handler.appeal.selector;
        actions[10] = Handler.vote.selector;
        actions[11] = Handler.pay.selector;
        actions[12] = Handler.settle.selector;
        actions[13] = Handler.impeach.selector;
        actions[14] = Handler.claim.selector;
        actions[15] = Handler.join.selector;
        actions[16] = Handler.leave.selector;
        actions[17] = Handler.release.selector;
        actions[18] = Handler.rotate.selector;
        actions[19] = Handler.staffing.selector;
        actions[22] = Handler.again.selector;
        actions[23] = Handler.trial.selector;
        actions[20] = Handler.stake.selector;
        actions[21] = Handler.purse.selector;
        _actions = actions;
        targetContract(address(handler));
        targetSelector(FuzzSelector(address(handler), actions));
    }

    /// @dev Bonds holds exactly what the accounts say.
    function invariant_stake_is_all_there() public view {
        (,,, uint256 people) = handler.counts();
        uint256 sum;
        for (uint256 i; i < people; ++i) {
            IBonds.Account memory a = bonds.accounts(handler.person(i));
            assertLe(a.locked, a.active, "locked beyond active");
            sum += uint256(a.active) + a.leaving;
        }
        // whoever else was credited: finders
        IBonds.Account memory stranger = bonds.accounts(address(0x0D));
        sum += uint256(stranger.active) + stranger.leaving;
        assertEq(bonds.total(), sum, "total is not the sum");
        assertEq(token.balanceOf(address(bonds)), sum, "balance is not the sum");
    }

    /// @dev An account's locked stake is that of its seats, and of nothing else.
    function invariant_locks_are_those_of_seats() public view {
        (uint256 chairs,,, uint256 people) = handler.counts();
        for (uint256 i; i < people; ++i) {
            address who = handler.person(i);
            uint256 locked;
            for (uint256 k; k < chairs; ++k) {
                (uint256 run, address seat,) = handler.chairs(k);
                IRuns.Seat memory s = runs.seats(run, seat);
                if (s.operator == who) locked += s.locked;
            }
            for (uint256 run = 1; run <= RUNS; ++run) {
                locked += bench.validators(run, who).locked;
            }
            assertEq(bonds.accounts(who).locked, locked);
        }
    }

    /// @dev A verdict takes what its policy says, from the seat it is on, and a seat never loses more than it locked.
    function invariant_a_verdict_takes_its_due_from_its_seat() public view {
        assertEq(handler.excess(), 0, "a verdict took more than it may");
        assertEq(handler.stray(), 0, "a verdict touched another seat's lock");
        (uint256 chairs,,,) = handler.counts();
        for (uint256 k; k < chairs; ++k) {
            (uint256 run, address seat,) = handler.chairs(k);
            if (handler.lockedIn(run, seat) == 0) continue; // released
            assertLe(handler.lost(run, seat), handler.lockedIn(run, seat), "a seat lost more than it locked");
        }
    }

    /// @dev Runs holds exactly what it owes and what is free, and what it owes is the reward of all unclaimed units.
    function invariant_what_is_owed_is_reserved() public view {
        (uint256 chairs,,,) = handler.counts();
        uint256 balance;
        for (uint256 run = 1; run <= RUNS; ++run) {
            uint256 units;
            for (uint256 k; k < chairs; ++k) {
                (uint256 home, address seat,) = handler.chairs(k);
                if (home != run) continue;
                IRuns.Seat memory s = runs.seats(run, seat);
                units += s.ring.sum() + s.held + s.vested;
            }
            IRuns.Funds memory f = runs.funds(run);
            uint256 reward = policies.policy(run).reward;
            assertEq(f.reserved, units * reward, "reserved is not what seats are owed");
            assertEq(
                handler.submitted(run), units + handler.claimed(run) + handler.revoked(run), "units were lost or made"
            );
            balance += uint256(f.free) + f.reserved;
        }
        assertEq(token.balanceOf(address(runs)), balance, "balance is not the sum");
    }

    /// @dev What a seat has claimed, or could, was submitted a window ago or more, and is not disputed or revoked.
    function invariant_no_reward_before_its_window() public view {
        (uint256 chairs, uint256 jobs,,) = handler.counts();
        for (uint256 k; k < chairs; ++k) {
            (uint256 run, address seat,) = handler.chairs(k);
            (uint256 ready,) = runs.claimable(run, seat);
            uint256 paid = handler.claimedBy(run, seat) + ready;
            if (paid == 0) continue;
            uint256 window = policies.policy(run).window;
            uint256 ripe;
            for (uint256 i; i < jobs; ++i) {
                Handler.Job memory j = handler.job(i);
                if (j.run != run || j.seat != seat || j.time + window > block.timestamp) continue;
                ICourt.State state = court.stateOf(run, j.ref);
                if (state == ICourt.State.Submitted || state == ICourt.State.Cleared) ripe += j.units;
            }
            assertLe(paid, ripe);
        }
    }

    function invariant_no_stake_leaves_before_its_delay() public view {
        assertEq(handler.early(), 0);
    }

    /// @dev Seats and validators count the open cases there are; units in cases are held, and in no case twice.
    function invariant_open_cases_are_counted() public view {
        (uint256 chairs,,,) = handler.counts();
        uint256[5][4] memory parties; // by run and validator
        for (uint256 k; k < chairs; ++k) {
            (uint256 run, address seat,) = handler.chairs(k);
            IRuns.Seat memory s = runs.seats(run, seat);
            (uint256 open, uint256 hard, uint256 held) = (0, 0, 0);
            for (uint256 n = 1; n <= s.cases; ++n) {
                ICourt.Case memory c = court.cases(run, seat, n);
                assertTrue(c.stage != ICourt.Stage.None, "a case is missing");
                if (!isOpen(c.stage)) continue;
                ++open;
                held += c.ring.sum();
                if (c.stage == ICourt.Stage.Undecided) continue;
                if (c.hard) ++hard;
                for (uint256 v; v < 5; ++v) {
                    address who = handler.validator(v);
                    if (who == c.challenger || (c.hard && who == c.coSigner)) parties[run][v] += c.bond;
                    if (who == c.appellant) parties[run][v] += policies.policy(run).bond;
                }
            }
            assertEq(s.openCases, open, "open cases");
            assertEq(s.openHard, hard, "open hard cases");
            assertEq(s.held, s.swept ? 0 : held, "units held");
        }
        for (uint256 run = 1; run <= RUNS; ++run) {
            for (uint256 v; v < 5; ++v) {
                assertEq(bench.validators(run, handler.validator(v)).atRisk, parties[run][v], "bonds at risk");
            }
        }
    }

    function invariant_the_bench_is_counted() public view {
        for (uint256 run = 1; run <= RUNS; ++run) {
            uint256 seated;
            for (uint256 v; v < 5; ++v) {
                IBench.Validator memory x = bench.validators(run, handler.validator(v));
                if (x.since != 0 && x.until == 0) ++seated;
            }
            assertEq(bench.seated(run), seated);
        }
    }

    /// @dev What a seat may have at risk follows its lock; what it has fits a ring.
    function invariant_exposure_follows_stake() public view {
        (uint256 chairs,,,) = handler.counts();
        for (uint256 k; k < chairs; ++k) {
            (uint256 run, address seat,) = handler.chairs(k);
            IRuns.Seat memory s = runs.seats(run, seat);
            IPolicies.Policy memory p = policies.policy(run);
            assertEq(s.worth, s.locked / p.reward);
            assertLe(s.proven, handler.claimedBy(run, seat), "trusted for what it was not paid");
            uint256 exposed = s.ring.sum() + s.held;
            assertLe(exposed, uint256(p.nodeStake) * p.leverage / p.reward);
            assertLe(exposed, p.nodeStake / p.reward + handler.claimedBy(run, seat), "trusted with more than it earned");
        }
    }

    function invariant_vouchers_are_all_there() public view {
        assertEq(token.balanceOf(address(vouchers)), vouchers.pots(1) + vouchers.pots(2) + vouchers.pots(3));
    }

    function invariant_no_token_is_lost() public view {
        (,,, uint256 people) = handler.counts();
        uint256 sum = token.balanceOf(address(bonds)) + token.balanceOf(address(runs))
            + token.balanceOf(address(vouchers)) + token.balanceOf(address(handler));
        for (uint256 i; i < people; ++i) {
            sum += token.balanceOf(handler.person(i));
        }
        assertEq(sum, token.totalSupply());
    }

    /// @dev What verdicts take is paid out at once.
    function invariant_the_bench_keeps_nothing() public view {
        IBonds.Account memory a = bonds.accounts(address(bench));
        assertEq(uint256(a.active) + a.locked + a.leaving, 0);
    }

    /// @dev From here, whatever happened, everybody can get everything out: the exit is played and undone.
    function invariant_everyone_gets_their_money_out() public {
        uint256 snapshot = vm.snapshotState();
        (uint256 chairs,,, uint256 people) = handler.counts();
        uint256 span = 3_000; // of the longest policy, and notice beside it
        for (uint256 k; k < chairs; ++k) {
            (uint256 run, address seat,) = handler.chairs(k);
            uint256 cases = runs.seats(run, seat).cases;
            for (uint256 n = 1; n <= cases; ++n) {
                ICourt.Case memory c = court.cases(run, seat, n);
                for (; isOpen(c.stage); c = court.cases(run, seat, n)) {
                    if (block.timestamp < c.deadline) vm.warp(c.deadline);
                    court.settle(run, seat, n);
                }
            }
            IRuns.Seat memory s = runs.seats(run, seat);
            if (s.role == IRuns.Role.Active) {
                vm.prank(s.operator);
                runs.leave(run, seat);
            }
        }
        for (uint256 run = 1; run <= RUNS; ++run) {
            for (uint256 v; v < 5; ++v) {
                address who = handler.validator(v);
                IBench.Validator memory x = bench.validators(run, who);
                if (x.since == 0 || x.until != 0) continue;
                vm.prank(who);
                bench.enlist(run, false);
            }
            vm.prank(address(0x0A));
            runs.defund(run, type(uint128).max);
        }
        vm.warp(block.timestamp + 4 * span);
        for (uint256 k; k < chairs; ++k) {
            (uint256 run, address seat,) = handler.chairs(k);
            runs.claim(run, seat);
            if (runs.seats(run, seat).locked != 0) runs.release(run, seat);
        }
        for (uint256 run = 1; run <= RUNS; ++run) {
            for (uint256 v; v < 5; ++v) {
                address who = handler.validator(v);
                if (bench.validators(run, who).locked != 0) bench.release(run, who);
            }
            assertEq(runs.funds(run).reserved, 0, "something is owed and cannot be claimed");
            vm.prank(address(0x0A));
            runs.collect(run);
            assertEq(runs.funds(run).free, 0, "something is free and cannot be collected");
            handler.redeem(run, handler.validator(0), type(uint256).max);
        }
        for (uint256 i; i <= people; ++i) {
            address who = i == people ? address(0x0D) : handler.person(i);
            uint128 active = bonds.accounts(who).active;
            vm.startPrank(who);
            if (active != 0) bonds.unbond(active);
            vm.warp(block.timestamp + bonds.delay());
            if (bonds.accounts(who).leaving != 0) bonds.withdraw();
            vm.stopPrank();
        }
        assertEq(token.balanceOf(address(bonds)), 0, "stake is stuck");
        assertEq(token.balanceOf(address(runs)), 0, "budget is stuck");
        assertEq(token.balanceOf(address(vouchers)), 0, "vouchers are stuck");
        vm.revertToStateAndDelete(snapshot);
    }

    /// @dev The campaign above is no idle one: in 120 runs of 64 actions everything succeeds, and cases end in every way.
    function test_every_action_succeeds_sometimes() public {
        bytes4[32] memory calls = [
            runs.submit.selector,
            runs.submitMany.selector,
            runs.skip.selector,
            weights.publish.selector,
            runs.claim.selector,
            runs.join.selector,
            runs.leave.selector,
            runs.ban.selector,
            runs.release.selector,
            runs.rotate.selector,
            runs.offer.selector,
            runs.accept.selector,
            runs.defund.selector,
            runs.collect.selector,
            runs.pause.selector,
            court.challenge.selector,
            court.accuse.selector,
            court.appeal.selector,
            court.vote.selector,
            court.settle.selector,
            court.challengeAgain.selector,
            court.abstain.selector,
            court.impeach.selector,
            bench.approve.selector,
            bench.enlist.selector,
            bench.reinforce.selector,
            bench.unseat.selector,
            bench.release.selector,
            bonds.unbond.selector,
            bonds.rebond.selector,
            bonds.withdraw.selector,
            vouchers.redeem.selector
        ];
        uint256[32] memory done;
        uint256[2][8] memory verdicts; // by stage; soft and hard
        for (uint256 r; r < 120; ++r) {
            uint256 snapshot = vm.snapshotState();
            this.play(r);
            (uint256 chairs,,,) = handler.counts();
            for (uint256 k; k < chairs; ++k) {
                (uint256 run, address seat,) = handler.chairs(k);
                for (uint256 n = 1; n <= runs.seats(run, seat).cases; ++n) {
                    ICourt.Case memory c = court.cases(run, seat, n);
                    ++verdicts[uint256(c.stage)][c.hard ? 1 : 0];
                }
            }
            for (uint256 i; i < calls.length; ++i) {
                done[i] += handler.done(calls[i]);
            }
            vm.revertToStateAndDelete(snapshot);
        }
        for (uint256 stage = uint256(ICourt.Stage.Upheld); stage <= uint256(ICourt.Stage.Returned); ++stage) {
            assertGt(verdicts[stage][0], 0, string.concat("no soft case ends in stage ", vm.toString(stage)));
        }
        assertGt(verdicts[uint256(ICourt.Stage.Upheld)][1], 0, "nobody is convicted");
        for (uint256 i; i < calls.length; ++i) {
            assertGt(done[i], 0, string.concat("never succeeds: call ", vm.toString(i)));
        }
    }

    /// @dev A call of its own: its memory is given back.
    function play(uint256 r) external {
        for (uint256 i; i < 64; ++i) {
            uint256 seed = uint256(keccak256(abi.encode(r, i)));
            bytes memory data = abi.encodeWithSelector(_actions[seed % _actions.length], seed >> 8);
            (bool ok, bytes memory answer) = address(handler).call(data);
            if (ok) continue;
            assembly {
                revert(add(answer, 32), mload(answer))
            }
        }
    }

    function isOpen(ICourt.Stage stage) internal pure returns (bool) {
        return stage == ICourt.Stage.Open || stage == ICourt.Stage.Appealed || stage == ICourt.Stage.Undecided;
    }
}
