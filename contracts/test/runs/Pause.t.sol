// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, WrongState} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract PauseTest is World {
    function test_pause_stops_work_after_the_notice() public {
        vm.prank(OWNER);
        vm.expectEmit(address(runs));
        emit IRuns.Paused(run, true, block.timestamp + NOTICE);
        runs.pause(run, true);
        pass(NOTICE - 1);
        assertFalse(paused(run));
        submit(0, 1);
        pass(1);
        assertTrue(paused(run));
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.startPrank(nodes[0]);
        expectRefusal(IRuns.RunPaused.selector, block.timestamp);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
        expectRefusal(IRuns.RunPaused.selector, block.timestamp);
        runs.skip(run, ref.step, ref.sequence, beacon);
    }

    function test_a_paused_run_goes_on_at_once() public {
        vm.startPrank(OWNER);
        runs.pause(run, true);
        pass(NOTICE);
        runs.pause(run, false);
        vm.stopPrank();
        assertFalse(paused(run));
        submit(0, 1);
    }

    function test_only_the_owner_pauses() public {
        expectRefusal(Denied.selector, address(this));
        runs.pause(run, true);
    }

    function test_a_pause_cannot_be_announced_twice() public {
        vm.startPrank(OWNER);
        runs.pause(run, true);
        pass(1);
        expectRefusal(WrongState.selector);
        runs.pause(run, true);
    }

    function test_verdicts_claims_and_exits_go_on_in_a_paused_run() public {
        IRuns.SubmissionRef memory first = submit(0, 100);
        submit(1, 100);
        vm.prank(OWNER);
        runs.pause(run, true);
        pass(NOTICE);
        challenge(0, first);
        pass(APPEAL);
        settle(0, 1);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[1]), 100 * uint256(REWARD));
        vm.prank(operators[1]);
        runs.leave(run, nodes[1]);
        pass(SPAN);
        runs.release(run, nodes[1]);
    }

    function test_pausing_and_defunding_mind_each_their_own_time() public {
        vm.startPrank(OWNER);
        runs.pause(run, true);
        pass(NOTICE / 2);
        runs.defund(run, BUDGET);
        pass(NOTICE / 2);
        assertTrue(paused(run));
        runs.pause(run, false); // the defunding stands
        vm.stopPrank();
        submit(0, 1);
        pass(NOTICE / 2);
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.Unfunded.selector, 0, REWARD);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
        vm.startPrank(OWNER);
        runs.pause(run, true);
        runs.defund(run, 0); // the pause stands
        pass(NOTICE);
        vm.stopPrank();
        vm.prank(nodes[0]);
        expectRefusal(IRuns.RunPaused.selector, block.timestamp);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
    }

    function test_defunding_first_and_pausing_after_both_take_effect() public {
        vm.startPrank(OWNER);
        runs.defund(run, 1);
        pass(1);
        runs.pause(run, true);
        pass(NOTICE - 1);
        vm.stopPrank();
        submit(0, 1);
        pass(1);
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.RunPaused.selector, block.timestamp);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
    }
}
