// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice skip, and the strikes that skips and soft verdicts are.
contract SkipTest is World {
    function test_skip_gives_up_one_sequence_and_is_a_strike() public {
        vm.expectEmit(address(runs));
        emit IRuns.Skipped(run, nodes[0], 0, 0);
        skip();
        IRuns.Seat memory s = runs.seats(run, nodes[0]);
        assertEq(s.next, 1);
        assertEq(s.strikes, 1);
        assertEq(s.strikesSince, block.timestamp);
        assertEq(runs.funds(run).reserved, 0);
        assertEq(s.locked, NODE_STAKE); // nobody found it, nobody is paid
    }

    function test_skip_minds_step_beacon_and_sequence() public {
        bytes32 beacon = beaconOf(run, 0);
        vm.startPrank(nodes[0]);
        expectRefusal(IRuns.WrongSequence.selector, 1, 0);
        runs.skip(run, 0, 1, beacon);
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongBeacon.selector, SPEC, beacon));
        runs.skip(run, 0, 0, SPEC);
    }

    function test_too_many_strikes_suspend_until_their_window_is_over() public {
        for (uint256 i; i < STRIKES - 1; ++i) {
            skip();
            submit(0, 1);
            pass(1 hours);
        }
        skip();
        uint256 pardon = runs.seats(run, nodes[0]).strikesSince + WINDOW;
        refused(pardon);
        vm.warp(pardon - 1);
        refused(pardon);
        vm.warp(pardon);
        submit(0, 1);
        skip();
        assertEq(runs.seats(run, nodes[0]).strikes, 1);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE); // suspended, not slashed
    }

    function test_skips_and_soft_verdicts_count_together() public {
        uint256 number = challenge(0, submitMany(0, 2, 1));
        skip();
        skip();
        submit(0, 1); // two strikes so far
        pass(APPEAL);
        settle(0, number);
        assertEq(runs.seats(run, nodes[0]).strikes, STRIKES);
        refused(runs.seats(run, nodes[0]).strikesSince + WINDOW);
    }

    function skip() internal {
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(nodes[0]);
        runs.skip(run, ref.step, ref.sequence, beacon);
    }

    function refused(uint256 pardon) internal {
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.startPrank(nodes[0]);
        expectRefusal(IRuns.Suspended.selector, pardon);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
        expectRefusal(IRuns.Suspended.selector, pardon);
        runs.skip(run, ref.step, ref.sequence, beacon);
        vm.stopPrank();
    }
}
