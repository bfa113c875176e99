// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A node has finished its rollout; the owner sees its `submit` in the mempool and goes first.
contract OwnerFrontRunsTest is World {
    IRuns.SubmissionRef internal ref;
    bytes32 internal beacon;

    function setUp() public override {
        super.setUp();
        ref = nextRef(run, nodes[0]);
        beacon = beaconOf(run, ref.step);
    }

    modifier stillAccepted() {
        _;
        submit(ref, 100, beacon);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 100 * uint256(REWARD));
    }

    function test_by_pausing() public stillAccepted {
        vm.prank(OWNER);
        runs.pause(run, true);
    }

    function test_by_taking_the_budget_away() public stillAccepted {
        vm.prank(OWNER);
        runs.defund(run, type(uint128).max);
        pass(NOTICE - 1);
    }

    function test_by_banning() public stillAccepted {
        vm.prank(OWNER);
        runs.ban(run, nodes[0]);
    }

    function test_by_publishing() public stillAccepted {
        for (uint32 step = 1; step < 5; ++step) {
            vm.prank(TRAINER);
            weights.publish(run, step, manifestOf(step));
        }
    }

    function test_by_clearing_the_bench() public stillAccepted {
        for (uint256 v; v < 5; ++v) {
            approve(run, validators[v], false);
        }
    }

    /// @dev An old announcement is no loaded gun either: it took effect, for all to see, at the time it named.
    function test_by_collecting_what_was_announced_long_ago() public {
        vm.prank(OWNER);
        runs.defund(run, BUDGET - 100 * uint128(REWARD));
        pass(NOTICE + 1);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.Unfunded.selector, 100 * uint256(REWARD), 101 * uint256(REWARD));
        runs.submit(run, ref.root, ref.step, ref.sequence, 101, beacon); // refused before it is collected …
        vm.prank(OWNER);
        runs.collect(run);
        submit(ref, 100, beacon); // … and what was left is left after
    }
}
