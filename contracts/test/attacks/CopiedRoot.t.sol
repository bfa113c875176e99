// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A root is seen in the mempool and submitted first; or a transaction is lost or reorganised away.
contract CopiedRootTest is World {
    function test_who_was_copied_is_not_hurt() public {
        IRuns.SubmissionRef memory own = nextRef(run, nodes[0]);
        IRuns.SubmissionRef memory copy = own;
        copy.node = nodes[1];
        submit(IRuns.SubmissionRef(nodes[1], own.step, own.sequence, own.root), 100, beaconOf(run, 0));
        own.node = nodes[0];
        submit(own, 100, beaconOf(run, 0));
        uint256 number = accuse(0, 1, IRuns.SubmissionRef(nodes[1], own.step, own.sequence, own.root));
        pass(APPEAL);
        settle(1, number);
        assertTrue(runs.seats(run, nodes[1]).swept);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 100 * uint256(REWARD));
    }

    function test_a_lost_transaction_shifts_nothing() public {
        submit(0, 1);
        IRuns.SubmissionRef memory lost = nextRef(run, nodes[0]); // never lands
        bytes32 beacon = beaconOf(run, 0);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.WrongSequence.selector, lost.sequence + 1, lost.sequence);
        runs.submit(run, SPEC, 0, lost.sequence + 1, 1, beacon); // the next refuses to take its place
        submit(lost, 1, beacon);
    }

    function test_work_on_weights_that_a_reorg_took_away_is_refused_not_punished() public {
        uint256 before = vm.snapshotState();
        publish(run);
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 orphaned = beaconOf(run, 1);
        vm.revertToState(before);
        vm.roll(block.number + 1);
        vm.setBlockhash(block.number - 1, keccak256("another fork"));
        vm.prank(TRAINER);
        weights.publish(run, 1, manifestOf(1));
        vm.roll(block.number + 2);
        vm.setBlockhash(block.number - 1, keccak256("another fork"));
        bytes32 canonical = beaconOf(run, 1);
        assertNotEq(orphaned, canonical);
        vm.prank(nodes[0]);
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongBeacon.selector, orphaned, canonical));
        runs.submit(run, ref.root, 1, 0, 1, orphaned);
        assertEq(runs.seats(run, nodes[0]).next, 0);
    }
}
