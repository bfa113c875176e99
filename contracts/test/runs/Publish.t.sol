// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, WrongState} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract PublishTest is World {
    function test_publish_draws_a_beacon_from_the_block_before() public {
        vm.roll(2_000);
        vm.setBlockhash(1_999, keccak256("before"));
        bytes32 manifest = manifestOf(1);
        bytes32 beacon = keccak256(abi.encode(keccak256("before"), run, uint32(1), manifest));
        vm.prank(TRAINER);
        vm.expectEmit(address(runs));
        emit IRuns.Published(run, 1, manifest, beacon);
        runs.publish(run, 1, manifest);
        IRuns.Publication memory p = runs.publications(run, 1);
        assertEq(p.manifest, manifest);
        assertEq(p.beacon, beacon);
        assertEq(p.blockNumber, 2_000);
        assertEq(p.time, block.timestamp);
        assertEq(p.superseded, 0);
        assertEq(runs.published(run), 2);
        assertEq(runs.publications(run, 0).superseded, block.timestamp);
    }

    function test_only_the_trainer_publishes() public {
        vm.prank(OWNER);
        expectRefusal(Denied.selector, OWNER);
        runs.publish(run, 1, manifestOf(1));
    }

    function test_steps_are_published_in_order_and_with_a_manifest() public {
        vm.startPrank(TRAINER);
        expectRefusal(IRuns.WrongStep.selector, 0, 1);
        runs.publish(run, 0, manifestOf(0));
        expectRefusal(IRuns.WrongStep.selector, 2, 1);
        runs.publish(run, 2, manifestOf(2));
        expectRefusal(WrongState.selector);
        runs.publish(run, 1, 0);
    }

    function test_appeals_need_a_jury() public {
        run = open(policy());
        uint256 needed = 2 + 1 + 1; // quorum, challenger, co-signer
        for (uint256 i; i < needed; ++i) {
            vm.prank(TRAINER);
            expectRefusal(ICourt.TooFewValidators.selector, i, needed);
            runs.publish(run, 0, manifestOf(0));
            approve(run, validators[i], true);
            enlist(run, validators[i], true);
        }
        publish(run);
        enlist(run, validators[0], false); // one that is on its way out does not count
        vm.prank(TRAINER);
        expectRefusal(ICourt.TooFewValidators.selector, 3, 4);
        runs.publish(run, 1, manifestOf(1));
    }

    function test_instant_verdicts_need_none() public {
        run = open(instantPolicy());
        publish(run);
        assertEq(runs.published(run), 1);
    }
}
