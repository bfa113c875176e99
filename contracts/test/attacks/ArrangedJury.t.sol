// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice The run's owner packs the bench, or clears it, around a case; or makes a majority unreachable.
contract ArrangedJuryTest is World {
    address[3] internal puppets = [address(0xB1), address(0xB2), address(0xB3)];

    function pack() internal {
        for (uint256 i; i < 3; ++i) {
            bonds.deposit(puppets[i], STAKE);
            approve(run, puppets[i], true);
            enlist(run, puppets[i], true);
        }
    }

    function test_who_is_seated_after_the_submission_has_no_voice_on_it() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        uint256 number = accuse(0, 1, ref);
        appeal(0, number);
        pass(1);
        pack();
        pass(1);
        for (uint256 i; i < 3; ++i) {
            vm.prank(puppets[i]);
            expectRefusal(IBench.NotOnBench.selector, puppets[i]);
            court.vote(run, nodes[0], number, 1, 1, EVIDENCE);
        }
        ICourt.Receipt memory second = coSignature(2, ref);
        vm.prank(puppets[0]);
        expectRefusal(IBench.NotOnBench.selector, puppets[0]);
        court.accuse(run, ref, 1, EVIDENCE, second);
    }

    function test_the_puppets_of_the_submissions_own_second_have_none_either() public {
        pack();
        IRuns.SubmissionRef memory ref = submit(0, 100);
        vm.prank(puppets[0]);
        expectRefusal(IBench.NotOnBench.selector, puppets[0]);
        court.challenge(run, one(ref), EVIDENCE);
    }

    function test_jurors_removed_around_a_case_still_decide_it() public {
        uint256 number = accuse(0, 1, submit(0, 100));
        for (uint256 v; v < 5; ++v) {
            approve(run, validators[v], false);
        }
        pass(APPEAL - 1);
        appeal(0, number);
        pass(VOTE - 1);
        vote(2, 0, number, false);
        vote(3, 0, number, false);
        assertStage(0, number, ICourt.Stage.Cleared);
        assertEq(bonds.accounts(operators[0]).active, STAKE + compensation(2 * BOND, 2, 3));
    }

    /// @dev Even the case that comes last of all: announced in the submission's second, opened in the window's last.
    function test_the_last_possible_case_still_has_its_jury() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        for (uint256 v; v < 5; ++v) {
            approve(run, validators[v], false);
        }
        pass(WINDOW - 1);
        uint256 number = accuse(0, 1, ref);
        pass(APPEAL - 1);
        appeal(0, number);
        pass(VOTE - 1);
        vote(2, 0, number, false);
        vote(3, 0, number, false);
        assertStage(0, number, ICourt.Stage.Cleared);
    }

    function test_no_work_is_asked_for_while_no_jury_can_be_found() public {
        approve(run, validators[0], false);
        approve(run, validators[1], false);
        approve(run, validators[2], false);
        vm.prank(TRAINER);
        expectRefusal(IBench.TooFewValidators.selector, 2, 3);
        weights.publish(run, 1, manifestOf(1));
    }

    function test_a_jury_that_keeps_silent_slashes_nobody() public {
        uint256 number = accuse(0, 1, submit(0, 100));
        appeal(0, number);
        for (uint256 v = 2; v < 5; ++v) {
            enlist(run, validators[v], false);
        }
        pass(VOTE);
        settle(0, number);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE);
        assertEq(bonds.accounts(validators[0]).active, STAKE);
        assertEq(bonds.accounts(validators[1]).active, STAKE);
    }

    function test_the_owners_own_stake_is_as_bound_as_anyones() public {
        pack();
        pass(1);
        IRuns.SubmissionRef memory ref = submit(0, 100);
        vm.prank(puppets[0]);
        court.challenge(run, one(ref), EVIDENCE);
        approve(run, puppets[0], false); // run with the bond
        pass(APPEAL - 1);
        appeal(0, 1);
        for (uint256 v; v < 3; ++v) {
            vote(v, 0, 1, false); // of seven jurors two are puppets
        }
        vote(3, 0, 1, false);
        assertEq(bonds.accounts(puppets[0]).active, STAKE - BOND);
    }
}
