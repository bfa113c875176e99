// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice What Runs does at a ruling of the Court, whatever the Court says.
contract SettleTest is World {
    /// @dev What matured before anybody accused the seat is not a conviction's, where a jury finds a soft case hard.
    function test_a_conviction_leaves_what_had_matured_before_it() public {
        submit(0, 100);
        pass(ripening(WINDOW));
        submit(0, 50);
        IRuns.Ruling memory r;
        (r.convicts, r.penalty, r.challenger) = (true, PENALTY, validators[0]);
        vm.prank(address(court));
        IRuns.Outcome memory o = runs.settle(run, nodes[0], r);
        assertEq(o.units, 50);
        assertEq(runs.seats(run, nodes[0]).vested, 100);
    }

    /// @dev The penalty is all that a key can lose, by appeals as well.
    function test_a_keys_lost_appeals_cost_the_penalty_at_most() public {
        IRuns.Ruling memory r;
        (r.keyed, r.cost, r.penalty) = (true, PENALTY - MUR, PENALTY);
        vm.startPrank(address(court));
        assertEq(runs.settle(run, nodes[0], r).paid, PENALTY - MUR);
        assertEq(runs.settle(run, nodes[0], r).paid, MUR);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY);
        r.keyed = false; // an operator's own
        assertEq(runs.settle(run, nodes[0], r).paid, NODE_STAKE - PENALTY);
    }
}
