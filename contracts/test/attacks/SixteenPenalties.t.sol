// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice Sixteen hard cases on one seat take sixteen penalties.
contract SixteenPenaltiesTest is World {
    function test_a_seat_pays_one_penalty() public {
        for (uint256 v; v < 5; ++v) {
            vm.prank(validators[v]);
            bench.reinforce(run, STAKE - VALIDATOR_STAKE);
        }
        IRuns.SubmissionRef[] memory submissions = submitMany(0, 16, 1);
        for (uint256 i; i < 16; ++i) {
            accuse(i % 4, 4, submissions[i]);
            if (i == 13) break; // as many as the second validator's stake covers
        }
        assertEq(runs.seats(run, nodes[0]).openHard, 14);
        pass(APPEAL);
        for (uint256 number = 1; number <= 14; ++number) {
            settle(0, number);
        }
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY);
        assertEq(bonds.accounts(operators[0]).active, STAKE - PENALTY);
        assertEq(runs.seats(run, nodes[0]).openCases, 0);
    }
}
