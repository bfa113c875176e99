// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice An honest operator has all its stake in seats, cannot pay for an appeal, and is convicted by silence.
contract NoStakeToAppealTest is World {
    function test_the_bond_comes_out_of_the_seats_own_lock() public {
        address operator = address(0xA11);
        bonds.deposit(operator, NODE_STAKE);
        (operators[0], keys[0], nodes[0]) = (operator, 0xA11, vm.addr(0xA11));
        seat(run, 0);
        publish(run);
        assertEq(bonds.accounts(operator).active - bonds.accounts(operator).locked, 0);
        uint256 number = accuse(0, 1, submit(0, 100));
        vm.prank(nodes[0]); // the node appeals by itself: the operator's cold key sleeps
        court.appeal(run, nodes[0], number);
        vote(2, 0, number, false);
        vote(3, 0, number, false);
        assertStage(0, number, ICourt.Stage.Cleared);
        assertEq(bonds.accounts(operator).active, NODE_STAKE + compensation(2 * BOND, 2, 3));
    }

    /// @dev Every case of a flood of them can be appealed: appeals that are won cost nothing, however many are open.
    function test_no_appeal_of_an_honest_seat_fails_for_want_of_stake() public {
        for (uint256 v; v < 2; ++v) {
            vm.prank(validators[v]);
            bench.reinforce(run, STAKE - VALIDATOR_STAKE);
        }
        IRuns.SubmissionRef[] memory submissions = submitMany(0, 12, 1);
        for (uint256 i; i < 12; ++i) {
            challenge(i % 2, submissions[i]);
        }
        for (uint256 number = 1; number <= 12; ++number) {
            vm.prank(nodes[0]);
            court.appeal(run, nodes[0], number);
        }
        for (uint256 number = 1; number <= 12; ++number) {
            poll(0, number, false);
            assertStage(0, number, ICourt.Stage.Cleared);
        }
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE);
    }
}
