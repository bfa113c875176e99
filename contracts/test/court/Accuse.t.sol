// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, InsufficientStake, TooLate, WrongState} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract AccuseTest is World {
    function test_accuse_opens_a_hard_case() public {
        submit(0, 10);
        IRuns.SubmissionRef memory ref = submit(0, 100);
        vm.expectEmit(address(court));
        emit ICourt.Challenged(run, nodes[0], ref.root, 0, 1, validators[0], true, EVIDENCE, nodes[0], 1);
        vm.expectEmit(address(court));
        emit ICourt.CoSigned(run, nodes[0], 1, validators[1], EVIDENCE);
        assertEq(accuse(0, 1, ref), 1);
        ICourt.Case memory c = court.cases(run, nodes[0], 1);
        assertEq(c.challenger, validators[0]);
        assertEq(c.coSigner, validators[1]);
        assertEq(c.samples, type(uint256).max);
        assertEq(c.earliest, block.timestamp);
        assertEq(c.deadline, block.timestamp + APPEAL);
        IRuns.Seat memory s = runs.seats(run, nodes[0]);
        assertEq(s.held, 100);
        assertEq(s.openHard, 1);
        assertEq(s.openCases, 1);
        assertEq(bench.validators(run, validators[0]).atRisk, BOND);
        assertEq(bench.validators(run, validators[1]).atRisk, BOND); // who signs a hard verdict answers for it
        assertEq(court.charges(court.submissionId(run, ref), validators[1]), 1);
    }

    function test_silence_convicts_sweeps_bans_and_slashes() public {
        submit(0, 40);
        pass(ripening(WINDOW)); // these 40 have matured
        publish(run);
        IRuns.SubmissionRef memory ref = submit(0, 100);
        submit(0, 70);
        accuse(0, 1, ref);
        pass(APPEAL);
        vm.expectEmit(address(court));
        emit ICourt.Settled(run, nodes[0], 1, ICourt.Stage.Upheld, 1, 0, true, 170, PENALTY);
        settle(0, 1);
        assertRole(0, IRuns.Role.Banned);
        IRuns.Seat memory s = runs.seats(run, nodes[0]);
        assertTrue(s.swept);
        assertEq(s.until, block.timestamp);
        assertEq(s.held, 0);
        assertEq(s.openHard, 0);
        assertEq(s.locked, NODE_STAKE - PENALTY);
        uint256 share = uint256(PENALTY) * FINDER_BPS / 10_000;
        assertEq(bonds.accounts(validators[0]).active, STAKE + share);
        assertEq(bonds.accounts(SINK).active, PENALTY - share);
        assertEq(bonds.accounts(operators[0]).active, STAKE - PENALTY);
        assertEq(runs.funds(run).reserved, 40 * uint256(REWARD));
        assertEq(runs.claim(run, nodes[0]), 40 * uint256(REWARD)); // what had matured stays
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 0);
        pass(SPAN);
        runs.release(run, nodes[0]);
        assertEq(bonds.accounts(operators[0]).locked, 0);
    }

    function test_a_conviction_takes_what_other_cases_hold() public {
        IRuns.SubmissionRef memory soft = submit(0, 50);
        IRuns.SubmissionRef memory hard = submit(0, 100);
        uint256 first = challenge(0, soft);
        appeal(0, first);
        accuse(1, 2, hard);
        pass(APPEAL);
        settle(0, 2);
        assertEq(runs.funds(run).reserved, 0);
        vote(2, 0, first, false);
        vote(3, 0, first, false); // cleared, but there is nothing left to return
        assertEq(runs.seats(run, nodes[0]).held, 0);
        assertEq(runs.funds(run).reserved, 0);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 0);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND);
    }

    function test_units_that_matured_in_a_case_are_not_safe_from_a_later_conviction() public {
        IRuns.SubmissionRef memory soft = submit(0, 50);
        uint256 number = challenge(0, soft);
        appeal(0, number);
        pass(WINDOW / 2);
        IRuns.SubmissionRef memory hard = submit(0, 100);
        pass(WINDOW / 2);
        accuse(1, 2, hard);
        pass(WINDOW / 5);
        vote(2, 0, number, false);
        vote(3, 0, number, false); // returns as matured
        assertEq(runs.claim(run, nodes[0]), 0);
        pass(APPEAL);
        settle(0, 2);
        assertEq(runs.claim(run, nodes[0]), 0);
    }

    function test_it_takes_a_second_validator_of_the_bench() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        bytes32 submission = court.submissionId(run, ref);
        ICourt.Receipt memory second = coSignature(1, ref);
        second.validator = validators[2]; // signed by another
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, validators[2]));
        second = coSignature(0, ref); // oneself
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, validators[0]));
        second = coSignature(1, ref);
        second.signature = signVerdict(run, submission, 2, type(uint256).max, validatorKeys[1]); // soft only
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, validators[1]));
        second.signature = signVerdict(run + 1, submission, 3, type(uint256).max, validatorKeys[1]);
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, validators[1]));
        second.signature = signVerdict(run, SPEC, 3, type(uint256).max, validatorKeys[1]);
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, validators[1]));
        second = coSignature(1, ref);
        second.samples = 1; // not what was signed
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, validators[1]));
        second = ICourt.Receipt(address(0), 1, EVIDENCE, "");
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, address(0)));
        vm.chainId(8453);
        bytes memory elsewhere = signVerdict(run, submission, 3, type(uint256).max, validatorKeys[1]);
        vm.chainId(31337);
        second = coSignature(1, ref);
        second.signature = elsewhere;
        refused(0, ref, second, abi.encodeWithSelector(Denied.selector, validators[1]));
        second = ICourt.Receipt(
            nodes[1], type(uint256).max, EVIDENCE, signVerdict(run, submission, 3, type(uint256).max, keys[1])
        );
        refused(0, ref, second, abi.encodeWithSelector(IBench.NotOnBench.selector, nodes[1]));
        accuse(0, 1, ref);
    }

    function test_the_second_must_cover_its_bond_too() public {
        for (uint256 i; i < VALIDATOR_STAKE / BOND; ++i) {
            challenge(1, submit(0, 1));
        }
        IRuns.SubmissionRef memory ref = submit(0, 1);
        refused(
            0,
            ref,
            coSignature(1, ref),
            abi.encodeWithSelector(InsufficientStake.selector, VALIDATOR_STAKE, VALIDATOR_STAKE + BOND)
        );
    }

    function test_only_samples_that_both_name_count() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        bytes32 submission = court.submissionId(run, ref);
        ICourt.Receipt memory second =
            ICourt.Receipt(validators[1], 6, EVIDENCE, signVerdict(run, submission, 3, 6, validatorKeys[1]));
        vm.startPrank(validators[0]);
        expectRefusal(ICourt.NoCommonSample.selector);
        court.accuse(run, ref, 9, EVIDENCE, second);
        court.accuse(run, ref, 3, EVIDENCE, second);
        assertEq(court.cases(run, nodes[0], 1).samples, 2);
    }

    function test_what_is_false_only_together_names_no_sample() public {
        IRuns.SubmissionRef memory ref = submit(0, 30);
        ICourt.Receipt memory summed = coSignatureOf(1, ref, 0);
        ICourt.Receipt memory single = coSignatureOf(1, ref, 6);
        vm.startPrank(validators[0]);
        expectRefusal(ICourt.NoCommonSample.selector);
        court.accuse(run, ref, 0, EVIDENCE, single);
        expectRefusal(ICourt.NoCommonSample.selector);
        court.accuse(run, ref, 6, EVIDENCE, summed);
        uint256 number = court.accuse(run, ref, 0, EVIDENCE, summed);
        vm.stopPrank();
        ICourt.Case memory c = court.cases(run, nodes[0], number);
        assertTrue(c.hard);
        assertEq(c.samples, 0);
        assertEq(c.coSigner, validators[1]);
        pass(APPEAL);
        settle(0, number);
        assertState(ref, ICourt.State.Revoked);
        assertTrue(runs.seats(run, nodes[0]).role == IRuns.Role.Banned);
        assertEq(bonds.accounts(operators[0]).active, STAKE - PENALTY);
    }

    function test_a_second_case_takes_over_from_one_that_names_no_sample() public {
        IRuns.SubmissionRef memory ref = submit(0, 30);
        ICourt.Receipt memory summed = coSignatureOf(1, ref, 0);
        vm.prank(validators[0]);
        uint256 first = court.accuse(run, ref, 0, EVIDENCE, summed);
        accuse(2, 3, ref);
        assertEq(court.cases(run, nodes[0], first).ring >> 64, 0); // it holds no units any more
        pass(APPEAL);
        settle(0, first);
        assertTrue(runs.seats(run, nodes[0]).role == IRuns.Role.Banned);
    }

    function test_a_signature_serves_once() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        uint256 number = accuse(0, 1, ref);
        refused(2, ref, coSignature(1, ref), abi.encodeWithSelector(Denied.selector, validators[1]));
        appeal(0, number);
        vote(3, 0, number, false);
        vote(4, 0, number, false);
        refused(0, ref, coSignature(1, ref), abi.encodeWithSelector(Denied.selector, validators[1]));
        accuse(0, 2, ref); // an acquittal does not end the matter before the window does
    }

    function test_without_co_signers_one_validator_suffices_once() public {
        IPolicies.Policy memory p = policy();
        p.coSigners = 0;
        switchTo(p);
        IRuns.SubmissionRef memory ref = submit(0, 1);
        ICourt.Receipt memory none;
        vm.startPrank(validators[0]);
        court.accuse(run, ref, 1, EVIDENCE, none);
        assertEq(court.cases(run, nodes[0], 1).coSigner, address(0));
        expectRefusal(Denied.selector, validators[0]);
        court.accuse(run, ref, 1, EVIDENCE, none);
    }

    function test_a_window_closes_to_the_second() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        pass(WINDOW - 1);
        uint256 snapshot = vm.snapshotState();
        accuse(0, 1, ref);
        vm.revertToState(snapshot);
        pass(1);
        refused(0, ref, coSignature(1, ref), abi.encodeWithSelector(TooLate.selector, block.timestamp));
    }

    function test_what_was_never_submitted_cannot_be_accused() public {
        IRuns.SubmissionRef memory never = IRuns.SubmissionRef(nodes[0], 0, 0, SPEC);
        refused(0, never, coSignature(1, never), abi.encodeWithSelector(WrongState.selector));
    }

    function test_escalation_moves_the_submission_out_of_the_open_soft_case() public {
        IRuns.SubmissionRef memory good = submit(0, 30);
        pass(WINDOW / 5);
        IRuns.SubmissionRef memory bad = submit(0, 50);
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](2);
        (list[0], list[1]) = (good, bad);
        uint256 soft = challenge(0, list);
        uint256 hard = accuse(1, 2, bad);
        assertEq(court.cases(run, nodes[0], soft).submissions, 2);
        assertEq(court.cases(run, nodes[0], soft).gone, 2);
        assertEq(court.cases(run, nodes[0], hard).earliest, block.timestamp);
        assertEq(runs.seats(run, nodes[0]).held, 80);
        pass(APPEAL - 1);
        appeal(0, hard);
        pass(1);
        settle(0, soft); // 30 revoked, one strike
        assertEq(runs.seats(run, nodes[0]).held, 50);
        assertEq(runs.seats(run, nodes[0]).strikes, 1);
        assertState(good, ICourt.State.Revoked);
        vote(3, 0, hard, false);
        vote(4, 0, hard, false); // 50 return
        assertState(bad, ICourt.State.Cleared);
        assertEq(runs.funds(run).reserved, 50 * uint256(REWARD));
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 50 * uint256(REWARD));
    }

    function test_what_two_overcharge_in_turns_is_one_strike() public {
        IRuns.SubmissionRef memory bad = submit(0, 50);
        for (uint256 turn; turn < 2; ++turn) {
            uint256 number = accuse(1 + turn, 2 - turn, bad); // with swapped signers
            appeal(0, number);
            ballot(3, 0, number, 1, 0); // false, and no cheat
            ballot(4, 0, number, 1, 0);
            assertState(bad, ICourt.State.Revoked);
            assertEq(runs.seats(run, nodes[0]).strikes, 1);
            assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - FEE);
        }
    }

    function test_a_soft_case_that_escalation_empties_ends_and_frees_its_bond() public {
        IRuns.SubmissionRef memory ref = submit(0, 50);
        uint256 soft = challenge(0, ref);
        appeal(0, soft);
        vote(3, 0, soft, false);
        uint256 hard = accuse(1, 2, ref);
        assertStage(0, soft, ICourt.Stage.Returned);
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
        assertEq(runs.seats(run, nodes[0]).openCases, 1);
        assertEq(runs.seats(run, nodes[0]).held, 50);
        assertEq(runs.funds(run).reserved, 50 * uint256(REWARD));
        assertState(ref, ICourt.State.Challenged);
        appeal(0, hard);
        vote(3, 0, hard, false);
        vote(4, 0, hard, false);
        assertState(ref, ICourt.State.Cleared);
        assertEq(runs.seats(run, nodes[0]).held, 0);
    }

    function test_an_open_soft_case_prolongs_nothing() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        pass(WINDOW - 1);
        appeal(0, challenge(0, ref));
        uint256 snapshot = vm.snapshotState();
        accuse(1, 2, ref);
        vm.revertToState(snapshot);
        pass(1);
        refused(1, ref, coSignature(2, ref), abi.encodeWithSelector(TooLate.selector, block.timestamp));
    }

    function test_an_open_hard_case_prolongs_nothing() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        pass(WINDOW - 1);
        accuse(0, 1, ref);
        pass(1);
        refused(2, ref, coSignature(3, ref), abi.encodeWithSelector(TooLate.selector, block.timestamp));
    }

    function test_a_softly_revoked_submission_can_still_be_accused_in_its_window() public {
        IRuns.SubmissionRef memory ref = submit(0, 50);
        submit(0, 20);
        challenge(0, ref);
        pass(APPEAL);
        settle(0, 1);
        uint256 number = accuse(1, 2, ref);
        assertEq(runs.seats(run, nodes[0]).held, 0); // its units are gone
        appeal(0, number);
        vote(3, 0, number, false);
        vote(4, 0, number, false);
        assertState(ref, ICourt.State.Revoked); // an acquittal brings them not back
        assertEq(runs.funds(run).reserved, 20 * uint256(REWARD));
        accuse(1, 3, ref); // nor is the second case confused about them
        pass(APPEAL);
        settle(0, 3);
        assertTrue(runs.seats(run, nodes[0]).swept);
        assertEq(runs.funds(run).reserved, 0);
    }

    function test_two_hard_cases_on_one_submission_stand_side_by_side() public {
        IRuns.SubmissionRef memory ref = submit(0, 50);
        uint256 first = accuse(0, 1, ref);
        uint256 second = accuse(2, 3, ref);
        assertEq(runs.seats(run, nodes[0]).held, 50);
        assertEq(runs.seats(run, nodes[0]).openHard, 2);
        appeal(0, first);
        vote(2, 0, first, false);
        vote(4, 0, first, false);
        assertEq(runs.seats(run, nodes[0]).held, 50); // the second holds them now
        appeal(0, second);
        vote(0, 0, second, false);
        vote(4, 0, second, false);
        assertEq(runs.seats(run, nodes[0]).held, 0);
        uint256 third = accuse(0, 4, ref);
        assertEq(runs.seats(run, nodes[0]).held, 50);
        pass(APPEAL);
        settle(0, third);
        assertTrue(runs.seats(run, nodes[0]).swept);
        assertEq(runs.funds(run).reserved, 0);
    }

    function test_a_convicted_seat_has_nothing_more_to_lose_but_its_submissions_can_still_be_convicted() public {
        IRuns.SubmissionRef memory first = submit(0, 1);
        IRuns.SubmissionRef memory second = submit(0, 1);
        accuse(0, 1, first);
        pass(APPEAL);
        settle(0, 1);
        vm.prank(validators[2]);
        expectRefusal(WrongState.selector);
        court.challenge(run, one(second), EVIDENCE);
        uint256 number = accuse(2, 3, second);
        uint128 locked = runs.seats(run, nodes[0]).locked;
        uint256 snapshot = vm.snapshotState();
        pass(APPEAL);
        settle(0, number);
        assertStage(0, number, ICourt.Stage.Upheld);
        assertEq(runs.seats(run, nodes[0]).locked, locked);
        vm.revertToState(snapshot);
        vm.prank(nodes[0]);
        expectRefusal(InsufficientStake.selector, 0, BOND); // its penalty is spent
        court.appeal(run, nodes[0], number);
        appeal(0, number); // the operator still can
        poll(0, number, true);
        assertEq(runs.seats(run, nodes[0]).locked, locked - BOND);
    }

    function test_the_penalty_reaches_who_has_left() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        vm.startPrank(operators[0]);
        runs.leave(run, nodes[0]);
        bonds.unbond(STAKE - NODE_STAKE);
        vm.stopPrank();
        uint40 until = runs.seats(run, nodes[0]).until;
        accuse(0, 1, ref);
        pass(APPEAL);
        settle(0, 1);
        assertEq(bonds.accounts(operators[0]).active, NODE_STAKE - PENALTY);
        assertEq(bonds.accounts(operators[0]).leaving, STAKE - NODE_STAKE);
        assertRole(0, IRuns.Role.Banned);
        assertEq(runs.seats(run, nodes[0]).until, until);
    }

    function test_instant_hard_verdicts() public {
        switchTo(instantPolicy());
        IRuns.SubmissionRef memory ref = submit(0, 100);
        submit(0, 20);
        accuse(0, 1, ref);
        assertTrue(runs.seats(run, nodes[0]).swept);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY);
        assertEq(runs.funds(run).reserved, 0);
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
        assertEq(bench.validators(run, validators[1]).atRisk, 0);
        assertStage(0, 1, ICourt.Stage.Upheld);
    }

    function refused(uint256 v, IRuns.SubmissionRef memory ref, ICourt.Receipt memory second, bytes memory why)
        internal
    {
        vm.prank(validators[v]);
        vm.expectRevert(why);
        court.accuse(run, ref, type(uint256).max, EVIDENCE, second);
    }
}
