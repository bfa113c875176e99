// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, TooEarly, WrongState, ZeroAmount} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract ChallengeTest is World {
    function test_challenge_opens_a_case_and_takes_the_units_out() public {
        IRuns.SubmissionRef memory first = submit(0, 100);
        pass(WINDOW / 5);
        IRuns.SubmissionRef memory second = submit(0, 30);
        submit(0, 7);
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](2);
        (list[0], list[1]) = (second, first);
        vm.expectEmit(address(court));
        emit ICourt.Challenged(run, nodes[0], second.root, 0, 1, validators[0], false, EVIDENCE, nodes[0], 1);
        vm.expectEmit(address(court));
        emit ICourt.Challenged(run, nodes[0], first.root, 0, 0, validators[0], false, EVIDENCE, nodes[0], 1);
        assertEq(challenge(0, list), 1);
        ICourt.Case memory c = court.cases(run, nodes[0], 1);
        assertEq(c.challenger, validators[0]);
        assertEq(c.earliest, block.timestamp - WINDOW / 5);
        assertEq(c.deadline, block.timestamp + APPEAL);
        assertStage(0, 1, ICourt.Stage.Open);
        assertEq(c.submissions, 2);
        assertEq(c.samples, 0);
        IRuns.Seat memory s = runs.seats(run, nodes[0]);
        assertEq(s.held, 130);
        assertEq(s.openCases, 1);
        assertEq(s.openHard, 0);
        assertEq(bench.validators(run, validators[0]).atRisk, BOND);
        assertState(first, ICourt.State.Challenged);
        (uint256 ready, uint256 pending) = runs.claimable(run, nodes[0]);
        assertEq(ready, 0);
        assertEq(pending, 137);
    }

    function test_a_soft_case_stops_neither_work_nor_other_pay() public {
        challenge(0, submit(0, 100));
        submit(0, 30);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 30 * uint256(REWARD));
    }

    function test_silence_convicts_revokes_and_is_a_strike_each_with_a_fee() public {
        IRuns.SubmissionRef[] memory list = submitMany(0, 3, 100);
        challenge(0, list);
        pass(APPEAL - 1);
        expectRefusal(TooEarly.selector, block.timestamp + 1);
        settle(0, 1);
        pass(1);
        vm.expectEmit(address(court));
        emit ICourt.Settled(run, nodes[0], 1, ICourt.Stage.Upheld, 7, 0, false, 300, 3 * uint256(FEE));
        settle(0, 1);
        assertState(list[1], ICourt.State.Revoked);
        IRuns.Seat memory s = runs.seats(run, nodes[0]);
        assertEq(s.held, 0);
        assertEq(s.openCases, 0);
        assertEq(s.strikes, 3);
        assertEq(s.locked, NODE_STAKE - 3 * uint256(FEE));
        assertEq(s.worth, s.locked / REWARD);
        assertEq(bonds.accounts(validators[0]).active, STAKE + findersOf(3 * FEE));
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
        assertEq(runs.funds(run).free, BUDGET);
        assertEq(runs.funds(run).reserved, 0);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 0);
        expectRefusal(WrongState.selector);
        settle(0, 1);
    }

    function test_fees_end_with_the_strikes_that_suspend() public {
        challenge(0, submitMany(0, 10, 1));
        pass(APPEAL);
        settle(0, 1);
        assertEq(runs.seats(run, nodes[0]).strikes, STRIKES);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - STRIKES * uint256(FEE));
    }

    function test_fees_leave_the_penalty_whole() public {
        IPolicies.Policy memory p = policy();
        (p.fee, p.bond, p.juryFee, p.nodeStake) = (uint96(5 * MUR), 1, 1, PENALTY + 1 + 20 * MUR);
        switchTo(p);
        for (uint256 i; i < 2; ++i) {
            uint256 number = challenge(0, submitMany(0, 4, 1));
            pass(APPEAL);
            settle(0, number);
            pass(WINDOW);
        }
        assertEq(runs.seats(run, nodes[0]).locked, PENALTY);
    }

    function test_a_window_closes_to_the_second() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        pass(WINDOW - 1);
        uint256 snapshot = vm.snapshotState();
        challenge(0, ref);
        vm.revertToState(snapshot);
        pass(1);
        refused(0, one(ref), abi.encodeWithSelector(WrongState.selector));
    }

    function test_what_cannot_be_taken_is_left_out() public {
        IRuns.SubmissionRef memory late = submit(0, 1);
        pass(WINDOW);
        publish(run);
        IRuns.SubmissionRef memory taken = submit(0, 2);
        challenge(1, taken);
        IRuns.SubmissionRef memory fresh = submit(0, 4);
        IRuns.SubmissionRef memory never = IRuns.SubmissionRef(nodes[0], 1, 77, SPEC);
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](5);
        (list[0], list[1], list[2], list[3], list[4]) = (late, taken, never, fresh, fresh);
        uint256 number = challenge(0, list);
        assertEq(court.cases(run, nodes[0], number).submissions, 1);
        assertEq(court.cases(run, nodes[0], number).earliest, block.timestamp);
        assertEq(runs.submissions(court.submissionId(run, fresh)).number, number);
        assertEq(runs.submissions(court.submissionId(run, taken)).number, 1);
        assertEq(runs.seats(run, nodes[0]).held, 6);
    }

    function test_a_list_names_submissions_of_one_seat() public {
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](2);
        (list[0], list[1]) = (submit(0, 1), submit(1, 1));
        refused(0, list, abi.encodeWithSelector(Denied.selector, nodes[1]));
    }

    function test_lists_have_one_to_255_submissions() public {
        refused(0, new IRuns.SubmissionRef[](0), abi.encodeWithSelector(ZeroAmount.selector));
        IRuns.SubmissionRef[] memory list = submitMany(0, 256, 1);
        refused(0, list, abi.encodeWithSelector(ICourt.TooManySubmissions.selector, 256, 255));
        assembly {
            mstore(list, 255)
        }
        challenge(0, list);
        assertEq(court.cases(run, nodes[0], 1).submissions, 255);
    }

    function test_a_submission_is_softly_challenged_once() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        uint256 number = challenge(0, ref);
        appeal(0, number);
        vote(2, 0, number, false);
        vote(3, 0, number, false);
        assertState(ref, ICourt.State.Cleared);
        refused(1, one(ref), abi.encodeWithSelector(WrongState.selector));
    }

    function test_only_the_bench_judges() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        vm.prank(STRANGER);
        expectRefusal(IBench.NotOnBench.selector, STRANGER);
        court.challenge(run, one(ref), EVIDENCE);
        vm.prank(OWNER);
        expectRefusal(IBench.NotOnBench.selector, OWNER);
        court.challenge(run, one(ref), EVIDENCE);
    }

    function test_a_validator_judges_what_was_submitted_after_it_sat_down() public {
        address fresh = address(0xF4E5);
        bonds.deposit(fresh, STAKE);
        approve(run, fresh, true);
        IRuns.SubmissionRef memory before = submit(0, 1);
        pass(1);
        enlist(run, fresh, true);
        IRuns.SubmissionRef memory same = submit(0, 1); // in the very second
        pass(1);
        IRuns.SubmissionRef memory later = submit(0, 1);
        vm.startPrank(fresh);
        expectRefusal(IBench.NotOnBench.selector, fresh);
        court.challenge(run, one(before), EVIDENCE);
        expectRefusal(IBench.NotOnBench.selector, fresh);
        court.challenge(run, one(same), EVIDENCE);
        court.challenge(run, one(later), EVIDENCE);
    }

    function test_instant_verdicts() public {
        switchTo(instantPolicy());
        IRuns.SubmissionRef memory ref = submit(0, 100);
        vm.prank(validators[0]);
        vm.expectEmit(address(court));
        emit ICourt.Settled(run, nodes[0], 1, ICourt.Stage.Upheld, 1, 0, false, 100, FEE);
        court.challenge(run, one(ref), EVIDENCE);
        assertState(ref, ICourt.State.Revoked);
        assertEq(runs.funds(run).reserved, 0);
        assertEq(runs.seats(run, nodes[0]).held, 0);
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
        vm.prank(operators[0]);
        expectRefusal(WrongState.selector);
        court.appeal(run, nodes[0], 1);
        expectRefusal(WrongState.selector);
        settle(0, 1);
    }

    function test_only_court_gives_runs_verdicts() public {
        IRuns.SubmissionRef[] memory list = one(submit(0, 1));
        IRuns.Ruling memory r;
        vm.startPrank(OWNER);
        expectRefusal(Denied.selector, OWNER);
        runs.withhold(run, list);
        expectRefusal(Denied.selector, OWNER);
        runs.accuse(run, nodes[0], bytes32(0), IRuns.Whereabouts.Seat);
        expectRefusal(Denied.selector, OWNER);
        runs.settle(run, nodes[0], r);
    }

    function refused(uint256 v, IRuns.SubmissionRef[] memory list, bytes memory why) internal {
        vm.prank(validators[v]);
        vm.expectRevert(why);
        court.challenge(run, list, EVIDENCE);
    }
}
