// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IWeights} from "../../src/interfaces/IWeights.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice An identity is chosen after the beacon is known, so that its assignment pleases.
contract IdentityAfterBeaconTest is World {
    function test_a_fresh_key() public {
        (keys[0], nodes[0]) = (0xF4E5, vm.addr(0xF4E5));
        seat(run, 0);
        tooYoung(nodes[0]);
        vm.roll(block.number + 1);
        tooYoung(nodes[0]);
    }

    function test_a_key_that_joins_in_the_block_of_publication() public {
        (keys[0], nodes[0]) = (0xF4E5, vm.addr(0xF4E5));
        vm.roll(block.number + 1);
        vm.prank(TRAINER);
        weights.publish(run, 1, manifestOf(1));
        seat(run, 0);
        vm.roll(block.number + 2);
        tooYoung(nodes[0]);
    }

    function test_a_key_rotated_in() public {
        Consent memory c = consentOf(run, 0);
        (c.node, c.peer) = (vm.addr(0xF4E5), peerOf(vm.addr(0xF4E5)));
        bytes memory signature = signConsent(c, 0xF4E5);
        vm.prank(operators[0]);
        runs.rotate(run, nodes[0], c.node, c.peer, c.deadline, signature);
        tooYoung(c.node);
    }

    function test_another_hardware_class() public {
        Consent memory c = consentOf(run, 0);
        c.hardware = 9; // with another set of length budgets
        join(c, signConsent(c, keys[0]), "");
        tooYoung(nodes[0]);
    }

    function test_another_operator() public {
        vm.prank(operators[0]);
        runs.offer(run, nodes[0], operators[1], NEVER);
        vm.prank(operators[1]);
        runs.accept(run, nodes[0]);
        tooYoung(nodes[0]);
    }

    function tooYoung(address node) internal {
        uint32 step = weights.published(run) - 1;
        IWeights.Publication memory head = weights.publications(run, step);
        uint256 since = runs.seats(run, node).since;
        assertGe(since, head.number);
        bytes32 beacon = beaconOf(run, step);
        vm.prank(node);
        expectRefusal(IRuns.SeatTooYoung.selector, since, head.number);
        runs.submit(run, SPEC, step, 0, 1, beacon);
    }
}
