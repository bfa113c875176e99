// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {InsufficientStake} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice More junk roots than one validator has bonds for: most vest unchallenged.
contract JunkRootsTest is World {
    function test_one_case_and_one_bond_take_all_of_a_seats_junk() public {
        IRuns.SubmissionRef[] memory junk = submitMany(0, 200, 10);
        uint256 number = challenge(0, junk);
        assertEq(bench.validators(run, validators[0]).atRisk, BOND);
        pass(APPEAL);
        settle(0, number);
        assertEq(runs.funds(run).reserved, 0);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 0);
    }

    /// @dev A friend challenges one of them first, so that the list would fail.
    function test_a_friend_cannot_make_the_list_fail() public {
        IRuns.SubmissionRef[] memory junk = submitMany(0, 200, 10);
        challenge(4, junk[77]);
        uint256 number = challenge(0, junk);
        assertEq(court.cases(run, nodes[0], number).submissions, 199);
        pass(APPEAL);
        settle(0, 1);
        settle(0, number);
        assertEq(runs.funds(run).reserved, 0);
    }

    /// @dev Junk from more seats than its bonds cover: it adds stake, and every verdict frees a bond again.
    function test_bonds_come_free_with_each_verdict_and_can_be_added() public {
        IRuns.SubmissionRef[] memory junk = submitMany(0, 4, 1);
        for (uint256 i; i < 3; ++i) {
            challenge(0, junk[i]);
        }
        vm.prank(validators[0]);
        expectRefusal(InsufficientStake.selector, VALIDATOR_STAKE, VALIDATOR_STAKE + BOND);
        court.challenge(run, one(junk[3]), EVIDENCE);
        uint256 snapshot = vm.snapshotState();
        vm.prank(validators[0]);
        bench.reinforce(run, BOND);
        challenge(0, junk[3]);
        vm.revertToState(snapshot);
        pass(APPEAL);
        settle(0, 1);
        challenge(0, junk[3]);
    }

    /// @dev Nor does junk pay while nobody looks: what a seat may have at risk is bound by what it locked.
    function test_a_seat_cannot_pile_up_more_than_its_stake_answers_for() public {
        uint256 most = uint256(NODE_STAKE) * LEVERAGE;
        for (uint32 step; step < 3; ++step) {
            bytes32 beacon = beaconOf(run, step);
            for (uint32 i; i < 8; ++i) {
                vm.prank(nodes[0]);
                try runs.submit(run, bytes32(uint256(i) + 1), step, i, MAX_UNITS, beacon) {} catch {}
            }
            publish(run);
        }
        assertLe(runs.funds(run).reserved, most);
        assertGt(runs.funds(run).reserved, 0);
    }

    function test_state_of_each_submission_is_known() public {
        IRuns.SubmissionRef[] memory junk = submitMany(0, 3, 1);
        challenge(0, junk);
        pass(APPEAL);
        settle(0, 1);
        for (uint256 i; i < 3; ++i) {
            assertState(junk[i], ICourt.State.Revoked);
        }
    }
}
