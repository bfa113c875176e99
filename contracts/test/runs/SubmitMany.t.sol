// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

contract SubmitManyTest is World {
    /// @dev Everything that can be seen afterwards is the same as after so many single submissions.
    function testFuzz_many_at_once_are_as_many_one_by_one(uint16[8] memory units) public {
        for (uint256 i; i < 8; ++i) {
            units[i] = uint16(bound(units[i], 1, 1_250));
        }
        uint256 snapshot = vm.snapshotState();
        for (uint256 i; i < 8; ++i) {
            submit(0, units[i]);
        }
        bytes32 single = everything();
        vm.revertToState(snapshot);
        IRuns.Item[] memory items = new IRuns.Item[](8);
        for (uint32 i; i < 8; ++i) {
            items[i] = IRuns.Item(keccak256(abi.encode(run, nodes[0], uint32(0), i)), units[i]);
        }
        bytes32 beacon = beaconOf(run, 0);
        vm.prank(nodes[0]);
        runs.submitMany(run, 0, 0, beacon, items);
        assertEq(everything(), single);
    }

    function test_it_goes_on_where_the_seat_stands() public {
        submit(0, 1);
        IRuns.SubmissionRef[] memory refs = submitMany(0, 3, 5);
        assertEq(refs[2].sequence, 3);
        assertEq(runs.seats(run, nodes[0]).next, 4);
        submit(0, 1);
    }

    function test_none_at_all_is_refused() public {
        publish(run);
        submit(0, 1);
        publish(run);
        IRuns.Item[] memory none = new IRuns.Item[](0);
        bytes32 beacon = beaconOf(run, 2);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.WrongSequence.selector, 0, 0);
        runs.submitMany(run, 2, 0, beacon, none);
    }

    function test_one_bad_item_refuses_all() public {
        IRuns.Item[] memory items = new IRuns.Item[](2);
        IPolicies.Policy memory p = policy();
        p.maxUnits = 7;
        switchTo(p);
        (items[0], items[1]) = (IRuns.Item(SPEC, 1), IRuns.Item(SPEC, 8));
        bytes32 beacon = beaconOf(run, 0);
        vm.startPrank(nodes[0]);
        expectRefusal(IRuns.InvalidUnits.selector, 8, 7);
        runs.submitMany(run, 0, 0, beacon, items);
        items[1].units = 0;
        expectRefusal(IRuns.InvalidUnits.selector, 0, 7);
        runs.submitMany(run, 0, 0, beacon, items);
    }

    function test_the_limits_of_a_step_and_a_seat_hold_for_the_whole() public {
        IRuns.Item[] memory items = new IRuns.Item[](uint256(MAX_PER_STEP) + 1);
        for (uint256 i; i < items.length; ++i) {
            items[i] = IRuns.Item(bytes32(i + 1), 1);
        }
        bytes32 beacon = beaconOf(run, 0);
        vm.startPrank(nodes[0]);
        expectRefusal(IRuns.WrongSequence.selector, MAX_PER_STEP, MAX_PER_STEP - 1);
        runs.submitMany(run, 0, 0, beacon, items);
        uint256 most = mostOf(nodes[0]);
        uint256 many = most / MAX_UNITS + 1;
        items = new IRuns.Item[](many);
        for (uint256 i; i < many; ++i) {
            items[i] = IRuns.Item(bytes32(i + 1), MAX_UNITS);
        }
        expectRefusal(IRuns.Overexposed.selector, many * MAX_UNITS, most);
        runs.submitMany(run, 0, 0, beacon, items);
    }

    function test_sums_of_units_do_not_wrap() public {
        IPolicies.Policy memory p = policy();
        (p.reward, p.maxUnits) = (0, 1);
        switchTo(p);
        IRuns.Item[] memory items = new IRuns.Item[](2);
        (items[0], items[1]) = (IRuns.Item(SPEC, type(uint32).max), IRuns.Item(SPEC, 2));
        bytes32 beacon = beaconOf(run, 0);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.Overexposed.selector, uint256(type(uint32).max) + 2, type(uint32).max);
        runs.submitMany(run, 0, 0, beacon, items);
    }

    function everything() internal view returns (bytes32 digest) {
        digest = keccak256(abi.encode(runs.seats(run, nodes[0]), runs.funds(run)));
        for (uint32 i; i < 8; ++i) {
            IRuns.SubmissionRef memory ref =
                IRuns.SubmissionRef(nodes[0], 0, i, keccak256(abi.encode(run, nodes[0], uint32(0), i)));
            IRuns.Submission memory w = runs.submissions(court.submissionId(run, ref));
            assertGt(w.units, 0);
            digest = keccak256(abi.encode(digest, w));
        }
    }
}
