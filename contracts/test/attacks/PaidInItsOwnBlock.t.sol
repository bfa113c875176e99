// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A node and three validators collude: submit, challenge softly, appeal, acquit, and claim in one block.
contract PaidInItsOwnBlockTest is World {
    function test_cleared_units_keep_their_maturity() public {
        submit(1, 1); // somebody else's
        IRuns.SubmissionRef memory ref = submit(0, 10_000);
        uint256 number = challenge(0, ref);
        vm.prank(nodes[0]);
        court.appeal(run, nodes[0], number);
        vote(1, 0, number, false);
        vote(2, 0, number, false);
        assertState(ref, ICourt.State.Cleared);
        assertEq(runs.claim(run, nodes[0]), 0);
        pass(WINDOW - 1);
        assertEq(runs.claim(run, nodes[0]), 0);
        // and all that time honest validators may accuse it
        uint256 hard = accuse(3, 4, ref);
        pass(APPEAL);
        settle(0, hard);
        assertEq(runs.claim(run, nodes[0]), 0);
        assertEq(runs.funds(run).reserved, REWARD);
        assertEq(bonds.accounts(operators[0]).active, STAKE + compensation(BOND, 2, 4) - PENALTY);
    }
}
