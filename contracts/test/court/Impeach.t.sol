// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, WrongState} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract ImpeachTest is World {
    IRuns.SubmissionRef internal ref;
    uint256 internal number;

    function setUp() public override {
        super.setUp();
        ref = submit(0, 100);
        number = accuseOf(6); // samples 1 and 2
        pass(APPEAL);
    }

    function test_who_vouched_for_a_convicted_sample_loses_a_bond() public {
        settle(0, number);
        ICourt.Receipt memory accepted = acceptance(2, 4);
        uint256 share = uint256(BOND) * FINDER_BPS / 10_000;
        bytes32 submission = court.submissionId(run, ref);
        vm.prank(STRANGER);
        vm.expectEmit(address(court));
        emit ICourt.Impeached(run, validators[2], submission, STRANGER, BOND);
        assertEq(court.impeach(run, ref, number, accepted), BOND);
        assertEq(bonds.accounts(validators[2]).active, STAKE - BOND);
        assertEq(bench.validators(run, validators[2]).locked, VALIDATOR_STAKE - BOND);
        assertEq(bonds.accounts(STRANGER).active, share);
        assertTrue(court.impeached(submission, validators[2]));
    }

    function test_it_loses_it_once_per_submission() public {
        settle(0, number);
        court.impeach(run, ref, number, acceptance(2, 4));
        ICourt.Receipt memory again = acceptance(2, 2);
        expectRefusal(WrongState.selector);
        court.impeach(run, ref, number, again);
        assertEq(court.impeach(run, ref, number, acceptance(3, 2)), BOND); // another one its own
    }

    function test_who_checked_other_samples_is_safe() public {
        settle(0, number);
        ICourt.Receipt memory accepted = acceptance(2, type(uint256).max - 6);
        expectRefusal(ICourt.NoCommonSample.selector);
        court.impeach(run, ref, number, accepted);
    }

    function test_there_is_no_falsehood_before_a_conviction() public {
        ICourt.Receipt memory accepted = acceptance(2, 4);
        expectRefusal(WrongState.selector);
        court.impeach(run, ref, number, accepted); // open
        expectRefusal(WrongState.selector);
        court.impeach(run, ref, number + 1, accepted); // none
    }

    function test_neither_an_acquittal_nor_a_soft_verdict_is_a_conviction() public {
        IRuns.SubmissionRef memory other = submit(1, 1);
        uint256 soft = challenge(0, other);
        pass(APPEAL);
        settle(1, soft);
        ICourt.Receipt memory accepted = acceptanceOf(2, other, 4);
        expectRefusal(WrongState.selector);
        court.impeach(run, other, soft, accepted);
        publish(run);
        other = submit(1, 1);
        uint256 hard = accuse(0, 1, other);
        appeal(1, hard);
        vote(3, 1, hard, false);
        vote(4, 1, hard, false);
        accepted = acceptanceOf(2, other, 4);
        expectRefusal(WrongState.selector);
        court.impeach(run, other, hard, accepted);
    }

    function test_a_conviction_speaks_of_its_own_submission_only() public {
        IRuns.SubmissionRef memory other = IRuns.SubmissionRef(nodes[0], 0, 1, SPEC);
        settle(0, number);
        ICourt.Receipt memory accepted = acceptanceOf(2, other, 4);
        expectRefusal(WrongState.selector);
        court.impeach(run, other, number, accepted);
    }

    function test_only_its_own_signed_acceptance_is_evidence() public {
        settle(0, number);
        bytes32 submission = court.submissionId(run, ref);
        ICourt.Receipt memory accepted = acceptance(2, 4);
        accepted.validator = validators[3];
        refused(accepted);
        accepted = acceptance(2, 4);
        accepted.samples = 6;
        refused(accepted);
        accepted = acceptance(2, 4);
        accepted.signature = signVerdict(run, submission, 2, 4, validatorKeys[2]); // it said soft
        refused(accepted);
        accepted.signature = signVerdict(run, submission, 3, 4, validatorKeys[2]);
        refused(accepted);
        accepted.signature = signVerdict(run + 1, submission, 1, 4, validatorKeys[2]);
        refused(accepted);
        accepted.signature = "";
        refused(accepted);
    }

    function test_what_is_left_is_taken() public {
        settle(0, number);
        uint128 left = VALIDATOR_STAKE;
        for (uint256 i; left >= BOND; ++i) {
            uint256 lost = challenge(2, submit(1, 1));
            appeal(1, lost);
            vote(3, 1, lost, false);
            vote(4, 1, lost, false);
            left -= BOND;
        }
        assertEq(court.impeach(run, ref, number, acceptance(2, 4)), left);
    }

    function test_a_validator_that_stands_by_the_submission_is_heard_first() public {
        vm.warp(block.timestamp - 1); // just in time
        vm.prank(validators[2]);
        court.appeal(run, nodes[0], number);
        poll(0, number, false);
        ICourt.Receipt memory accepted = acceptance(2, 4);
        expectRefusal(WrongState.selector);
        court.impeach(run, ref, number, accepted);
        assertEq(bonds.accounts(validators[2]).active, STAKE + JURY_FEE / 2); // paid like a juror
    }

    function test_a_case_found_merely_false_impeaches_nobody() public {
        vm.warp(block.timestamp - 1); // just in time
        appeal(0, number);
        for (uint256 v = 2; v < 5; ++v) {
            if (court.isJuror(run, nodes[0], number, validators[v])) ballot(v, 0, number, 1, 0);
        }
        assertStage(0, number, ICourt.Stage.Upheld);
        ICourt.Receipt memory accepted = acceptance(2, 4);
        expectRefusal(WrongState.selector);
        court.impeach(run, ref, number, accepted);
    }

    function test_who_gave_up_its_seat_answers_until_its_stake_is_free() public {
        enlist(run, validators[2], false);
        settle(0, number);
        pass(3 * uint256(SPAN) - 1);
        assertEq(court.impeach(run, ref, number, acceptance(2, 4)), BOND);
        pass(1);
        bench.release(run, validators[2]);
        assertEq(bonds.accounts(validators[2]).active, STAKE - BOND);
        assertEq(bonds.accounts(validators[2]).locked, 0);
    }

    function test_instant_convictions_count() public {
        switchTo(instantPolicy());
        ref = submit(0, 1);
        number = accuseOf(1);
        assertEq(court.impeach(run, ref, number, acceptance(2, 1)), BOND);
    }

    function test_what_was_false_only_together_makes_nobody_a_liar() public {
        ref = submit(1, 100);
        ICourt.Receipt memory second = coSignatureOf(1, ref, 0);
        vm.prank(validators[0]);
        number = court.accuse(run, ref, 0, EVIDENCE, second);
        pass(APPEAL);
        settle(1, number);
        assertTrue(runs.seats(run, nodes[1]).role == IRuns.Role.Banned);
        ICourt.Receipt memory all = acceptance(2, type(uint256).max);
        expectRefusal(ICourt.NoCommonSample.selector);
        court.impeach(run, ref, number, all);
        ICourt.Receipt memory none = acceptance(2, 0);
        expectRefusal(ICourt.NoCommonSample.selector);
        court.impeach(run, ref, number, none);
    }

    function accuseOf(uint256 samples) internal returns (uint256) {
        ICourt.Receipt memory second = coSignature(1, ref);
        vm.prank(validators[0]);
        return court.accuse(run, ref, samples, EVIDENCE, second);
    }

    function acceptance(uint256 v, uint256 samples) internal view returns (ICourt.Receipt memory) {
        return acceptanceOf(v, ref, samples);
    }

    function acceptanceOf(uint256 v, IRuns.SubmissionRef memory submission, uint256 samples)
        internal
        view
        returns (ICourt.Receipt memory)
    {
        bytes memory signature = signVerdict(run, court.submissionId(run, submission), 1, samples, validatorKeys[v]);
        return ICourt.Receipt(validators[v], samples, EVIDENCE, signature);
    }

    function refused(ICourt.Receipt memory accepted) internal {
        expectRefusal(Denied.selector, accepted.validator);
        court.impeach(run, ref, number, accepted);
    }
}
