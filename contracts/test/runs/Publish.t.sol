// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {IWeights} from "../../src/interfaces/IWeights.sol";
import {Denied, WrongState, ZeroAddress} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice Weights: publish, draw, appoint; and what Runs is told.
contract PublishTest is World {
    bytes32 internal constant HASH = keccak256("the block after");

    function test_the_beacon_comes_from_the_block_after_publication() public {
        vm.roll(2_000);
        bytes32 manifest = manifestOf(1);
        vm.prank(TRAINER);
        vm.expectEmit(address(weights));
        emit IWeights.Published(run, 1, manifest);
        weights.publish(run, 1, manifest);
        IWeights.Publication memory p = weights.publications(run, 1);
        assertEq(p.manifest, manifest);
        assertEq(p.beacon, bytes32(0));
        assertEq(p.number, 2_000);
        assertEq(p.time, block.timestamp);
        assertEq(p.superseded, 0);
        assertEq(weights.published(run), 2);
        assertEq(weights.publications(run, 0).superseded, block.timestamp);
        assertEq(weights.sourceOf(run, 1), 2_001);
        for (uint256 i; i < 2; ++i) {
            expectRefusal(IRuns.BeaconPending.selector, 2_001);
            weights.draw(run, 1);
            assertEq(weights.beaconOf(run, 1), bytes32(0));
            vm.roll(2_001);
        }
        vm.roll(2_002);
        vm.setBlockhash(2_001, HASH);
        bytes32 beacon = drawn(HASH, 1);
        assertEq(weights.beaconOf(run, 1), beacon);
        vm.expectEmit(address(weights));
        emit IWeights.Drawn(run, 1, beacon);
        weights.draw(run, 1);
        assertEq(weights.publications(run, 1).beacon, beacon);
        vm.roll(2_400); // the block is out of reach
        weights.draw(run, 1); // it is drawn: nothing happens
        assertEq(weights.sourceOf(run, 1), 2_001);
        assertEq(weights.beaconOf(run, 1), beacon);
    }

    function test_the_first_submission_draws() public {
        assertEq(weights.publications(run, 0).beacon, bytes32(0));
        submit(0, 5);
        bytes32 beacon = weights.publications(run, 0).beacon;
        assertNotEq(beacon, bytes32(0));
        assertEq(uint120(uint256(beacon)), 0); // 17 bytes
        submit(1, 5);
        assertEq(weights.publications(run, 0).beacon, beacon);
    }

    function test_a_reorganisation_refuses_what_named_the_old_beacon() public {
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, 0);
        vm.setBlockhash(weights.sourceOf(run, 0), HASH); // another block stands there now
        expectRefusal(IRuns.WrongBeacon.selector, uint256(beacon), uint256(drawn(HASH, 0)));
        submit(ref, 5, beacon);
        submit(ref, 5, drawn(HASH, 0));
    }

    function test_a_missed_draw_is_repeated_from_one_later_block() public {
        uint256 source = weights.sourceOf(run, 0);
        vm.roll(source + 256);
        assertNotEq(weights.beaconOf(run, 0), bytes32(0)); // still in reach
        vm.roll(source + 257);
        assertEq(weights.beaconOf(run, 0), bytes32(0));
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        expectRefusal(IRuns.WrongBeacon.selector, uint256(7), uint256(0));
        submit(ref, 5, bytes32(uint256(7))); // a submission does not name another block
        vm.expectEmit(address(weights));
        emit IWeights.Redrawn(run, 0, source + 258);
        weights.draw(run, 0);
        expectRefusal(IRuns.BeaconPending.selector, source + 258);
        weights.draw(run, 0);
        vm.roll(source + 259);
        vm.setBlockhash(source + 258, HASH);
        submit(ref, 5, drawn(HASH, 0));
    }

    function test_what_is_not_published_is_not_drawn() public {
        expectRefusal(WrongState.selector);
        weights.draw(run, 1);
        assertEq(weights.beaconOf(run, 1), bytes32(0));
    }

    function test_only_weights_tells_runs() public {
        expectRefusal(Denied.selector, address(this));
        runs.advance(run, 1);
        expectRefusal(Denied.selector, address(this));
        runs.draw(run, 0, bytes17(uint136(1)));
    }

    function test_only_the_trainer_publishes() public {
        vm.prank(OWNER);
        expectRefusal(Denied.selector, OWNER);
        weights.publish(run, 1, manifestOf(1));
    }

    function test_the_owner_replaces_the_trainer_with_notice() public {
        vm.expectEmit(address(weights));
        emit IWeights.Appointed(run, STRANGER, block.timestamp + NOTICE);
        vm.prank(OWNER);
        weights.appoint(run, STRANGER);
        (address next, uint256 from) = weights.successor(run);
        assertEq(next, STRANGER);
        assertEq(from, block.timestamp + NOTICE);
        pass(NOTICE - 1);
        assertEq(weights.trainer(run), TRAINER);
        vm.prank(STRANGER);
        expectRefusal(Denied.selector, STRANGER);
        weights.publish(run, 1, manifestOf(1));
        pass(1);
        vm.prank(TRAINER);
        expectRefusal(Denied.selector, TRAINER);
        weights.publish(run, 1, manifestOf(1));
        publishBy(STRANGER, run);
        (next, from) = weights.successor(run);
        assertEq(next, address(0));
        vm.prank(OWNER);
        weights.appoint(run, operators[0]); // again
        assertEq(weights.trainer(run), STRANGER);
        pass(NOTICE);
        assertEq(weights.trainer(run), operators[0]);
    }

    function test_a_second_appointment_replaces_one_that_waits() public {
        vm.startPrank(OWNER);
        weights.appoint(run, STRANGER);
        weights.appoint(run, operators[0]);
        vm.stopPrank();
        assertEq(weights.trainer(run), TRAINER);
        pass(NOTICE);
        assertEq(weights.trainer(run), operators[0]);
        assertEq(weights.replaced(run).length, 1); // STRANGER never was the trainer
    }

    function test_every_key_that_was_replaced_is_known() public {
        address[3] memory keys = [STRANGER, TRAINER, operators[0]]; // the first one comes back
        for (uint256 i; i < keys.length; ++i) {
            vm.prank(OWNER);
            weights.appoint(run, keys[i]);
            pass(NOTICE);
        }
        address[] memory before = weights.replaced(run);
        assertEq(before.length, 3);
        assertEq(before[0], TRAINER);
        assertEq(before[1], STRANGER);
        assertEq(before[2], TRAINER);
    }

    function test_only_the_owner_appoints_and_somebody() public {
        vm.prank(TRAINER);
        expectRefusal(Denied.selector, TRAINER);
        weights.appoint(run, STRANGER);
        vm.prank(OWNER);
        expectRefusal(ZeroAddress.selector);
        weights.appoint(run, address(0));
    }

    function test_steps_are_published_in_order_and_with_a_manifest() public {
        vm.startPrank(TRAINER);
        expectRefusal(IRuns.WrongStep.selector, 0, 1);
        weights.publish(run, 0, manifestOf(0));
        expectRefusal(IRuns.WrongStep.selector, 2, 1);
        weights.publish(run, 2, manifestOf(2));
        expectRefusal(WrongState.selector);
        weights.publish(run, 1, 0);
    }

    function test_appeals_need_a_jury() public {
        run = open(policy());
        uint256 needed = 1 + 1 + 1; // challenger, co-signer, a juror
        for (uint256 i; i < needed; ++i) {
            vm.prank(TRAINER);
            expectRefusal(IBench.TooFewValidators.selector, i, needed);
            weights.publish(run, 0, manifestOf(0));
            approve(run, validators[i], true);
            enlist(run, validators[i], true);
        }
        publish(run);
        enlist(run, validators[0], false); // one that is on its way out does not count
        vm.prank(TRAINER);
        expectRefusal(IBench.TooFewValidators.selector, 2, 3);
        weights.publish(run, 1, manifestOf(1));
    }

    function test_instant_verdicts_need_none() public {
        run = open(instantPolicy());
        publish(run);
        assertEq(weights.published(run), 1);
    }

    /// @dev Written out rather than taken from the contract under test.
    function drawn(bytes32 hash, uint32 step) internal view returns (bytes32) {
        bytes32 whole = keccak256(abi.encode(hash, run, step, manifestOf(step)));
        return bytes32((uint256(whole) >> 120) << 120);
    }
}
