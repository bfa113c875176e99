// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract SubmitTest is World {
    function testFuzz_submit_records_the_submission_and_reserves_its_reward(uint32 units, bytes32 root) public {
        units = uint32(bound(units, 1, MAX_UNITS));
        IRuns.SubmissionRef memory ref = IRuns.SubmissionRef(nodes[0], 0, 0, root);
        vm.expectEmit(address(runs));
        emit IRuns.Submitted(run, nodes[0], root, 0, 0, units);
        submit(ref, units, beaconOf(run, 0));
        IRuns.Submission memory w = runs.submissions(court.submissionId(run, ref));
        assertEq(w.time, block.timestamp);
        assertEq(w.units, units);
        assertEq(w.number, 0);
        IRuns.Funds memory f = runs.funds(run);
        assertEq(f.reserved, uint256(units) * REWARD);
        assertEq(uint256(f.free) + f.reserved, BUDGET);
        (uint256 ready, uint256 pending) = runs.claimable(run, nodes[0]);
        assertEq(ready, 0);
        assertEq(pending, units);
    }

    function test_a_submission_is_named_by_run_node_step_sequence_and_root() public view {
        IRuns.SubmissionRef memory ref = IRuns.SubmissionRef(nodes[0], 3, 4, SPEC);
        assertEq(court.submissionId(7, ref), keccak256(abi.encode(uint256(7), nodes[0], uint32(3), uint32(4), SPEC)));
    }

    function test_sequences_are_used_once_and_in_order() public {
        submit(0, 1);
        submit(0, 1);
        refused(0, 0, abi.encodeWithSelector(IRuns.WrongSequence.selector, 0, 2));
        refused(0, 1, abi.encodeWithSelector(IRuns.WrongSequence.selector, 1, 2));
        refused(0, 3, abi.encodeWithSelector(IRuns.WrongSequence.selector, 3, 2));
        publish(run);
        refused(1, 3, abi.encodeWithSelector(IRuns.WrongSequence.selector, 3, 0));
        refused(1, 2, abi.encodeWithSelector(IRuns.WrongSequence.selector, 2, 0));
        submit(0, 1);
    }

    function test_a_step_left_behind_is_not_returned_to() public {
        submit(0, 1);
        publish(run);
        submit(0, 1);
        refused(0, 1, abi.encodeWithSelector(IRuns.WrongStep.selector, 0, 1));
    }

    function test_a_seat_commits_at_most_so_many_files_a_step() public {
        IPolicies.Policy memory p = policy();
        p.maxPerStep = 2;
        switchTo(p);
        submit(0, 1);
        submit(0, 1);
        refused(0, 2, abi.encodeWithSelector(IRuns.WrongSequence.selector, 2, 1));
        publish(run);
        submit(0, 1);
    }

    function test_a_superseded_head_counts_for_the_grace() public {
        publish(run);
        vm.warp(weights.publications(run, 0).superseded + GRACE - 1);
        uint256 snapshot = vm.snapshotState();
        submit(IRuns.SubmissionRef(nodes[0], 0, 0, SPEC), 1, beaconOf(run, 0));
        vm.revertToState(snapshot);
        pass(1);
        refused(0, 0, abi.encodeWithSelector(IRuns.StaleStep.selector, 0));
    }

    function test_what_is_not_published_is_no_step() public {
        refused(1, 0, abi.encodeWithSelector(IRuns.StaleStep.selector, 1));
    }

    function test_the_beacon_must_be_the_steps() public {
        vm.prank(nodes[0]);
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongBeacon.selector, SPEC, beaconOf(run, 0)));
        runs.submit(run, SPEC, 0, 0, 1, SPEC);
    }

    function test_nothing_is_submitted_on_a_beacon_that_nobody_drew_in_time() public {
        vm.roll(block.number + 300); // the block that it comes from is out of reach
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        vm.expectRevert(abi.encodeWithSelector(IRuns.WrongBeacon.selector, bytes32(0), bytes32(0)));
        submit(ref, 1, bytes32(0));
        weights.draw(run, 0); // names a block to come
        vm.expectRevert(abi.encodeWithSelector(IRuns.BeaconPending.selector, block.number + 1));
        submit(ref, 1, bytes32(0));
    }

    function test_units_have_their_range() public {
        bytes32 beacon = beaconOf(run, 0);
        vm.startPrank(nodes[0]);
        expectRefusal(IRuns.InvalidUnits.selector, 0, MAX_UNITS);
        runs.submit(run, SPEC, 0, 0, 0, beacon);
        runs.submit(run, SPEC, 0, 0, MAX_UNITS, beacon);
        vm.stopPrank();
        IPolicies.Policy memory p = policy();
        p.maxUnits = 7;
        switchTo(p);
        refusedUnits(8, abi.encodeWithSelector(IRuns.InvalidUnits.selector, 8, 7));
        submit(0, 7);
    }

    function test_strangers_do_not_submit() public {
        bytes32 beacon = beaconOf(run, 0);
        vm.prank(STRANGER);
        expectRefusal(Denied.selector, STRANGER);
        runs.submit(run, SPEC, 0, 0, 1, beacon);
        vm.prank(operators[0]); // the cold key is not the hot one
        expectRefusal(Denied.selector, operators[0]);
        runs.submit(run, SPEC, 0, 0, 1, beacon);
    }

    function test_a_seat_works_from_the_first_weights_after_it_was_taken() public {
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        vm.roll(block.number + 1);
        seat(run, 0);
        uint256 since = block.number;
        vm.prank(TRAINER);
        weights.publish(run, 1, manifestOf(1)); // in the very block
        vm.roll(block.number + 2);
        refused(1, 0, abi.encodeWithSelector(IRuns.SeatTooYoung.selector, since, since));
        publish(run);
        submit(0, 1);
    }

    function test_no_reward_is_promised_without_budget() public {
        IPolicies.Policy memory p = policy();
        run = policies.create(p, SPEC);
        runs.fund(run, 10 * uint128(REWARD));
        people(run);
        publish(run);
        refusedUnits(11, abi.encodeWithSelector(IRuns.Unfunded.selector, 10 * uint256(REWARD), 11 * uint256(REWARD)));
        submit(0, 10);
        refusedUnits(1, abi.encodeWithSelector(IRuns.Unfunded.selector, 0, REWARD));
    }

    function test_an_unproven_seat_may_have_at_risk_what_its_stake_is_worth_and_earns_more() public {
        IPolicies.Policy memory p = policy();
        (p.maxUnits, p.bondBps) = (100_000, 0);
        switchTo(p);
        uint256 most = uint256(NODE_STAKE) / REWARD;
        assertEq(mostOf(nodes[0]), most);
        refusedUnits(uint32(most + 1), abi.encodeWithSelector(IRuns.Overexposed.selector, most + 1, most));
        IRuns.SubmissionRef memory ref = submit(0, uint32(most - 1));
        refusedUnits(2, abi.encodeWithSelector(IRuns.Overexposed.selector, most + 1, most));
        challenge(0, ref); // what is in a case is at risk as well
        refusedUnits(2, abi.encodeWithSelector(IRuns.Overexposed.selector, most + 1, most));
        pass(ripening(WINDOW));
        refusedUnits(2, abi.encodeWithSelector(IRuns.Overexposed.selector, most + 1, most));
        settle(0, 1);
        publish(run);
        most = uint256(NODE_STAKE - FEE) / REWARD; // the fee backs nothing any more
        submit(0, uint32(most));
        pass(ripening(WINDOW));
        publish(run);
        assertEq(mostOf(nodes[0]), most); // what has matured is trusted when it is paid
        runs.claim(run, nodes[0]);
        assertEq(mostOf(nodes[0]), 2 * most);
        submit(0, uint32(2 * most)); // what has matured is not at risk
        for (uint256 i; i < 3; ++i) {
            pass(ripening(WINDOW));
            runs.claim(run, nodes[0]);
            publish(run);
            submit(0, mostOf(nodes[0]));
        }
        assertEq(mostOf(nodes[0]), most * LEVERAGE); // and no more
        pass(ripening(WINDOW));
        runs.claim(run, nodes[0]);
        publish(run);
        most *= LEVERAGE;
        refusedUnits(uint32(most + 1), abi.encodeWithSelector(IRuns.Overexposed.selector, most + 1, most));
    }

    function test_without_rewards_a_seat_is_bound_by_the_ring_alone() public {
        IPolicies.Policy memory p = policy();
        (p.reward, p.maxUnits) = (0, (1 << 29) - 1);
        switchTo(p);
        submitMany(0, 8, p.maxUnits);
        refusedUnits(
            8, abi.encodeWithSelector(IRuns.Overexposed.selector, uint256(type(uint32).max) + 1, type(uint32).max)
        );
        pass(ripening(WINDOW));
        publish(run);
        runs.claim(run, nodes[0]);
        submitMany(0, 8, p.maxUnits);
        refusedUnits(
            8, abi.encodeWithSelector(IRuns.Overexposed.selector, uint256(type(uint32).max) + 1, type(uint32).max)
        );
        pass(ripening(WINDOW));
        runs.claim(run, nodes[0]);
        assertEq(runs.seats(run, nodes[0]).proven, type(uint32).max);
    }

    function test_a_stake_worth_more_than_a_ring_holds_is_worth_a_ring() public {
        IPolicies.Policy memory p = policy();
        p.reward = 1;
        switchTo(p);
        assertEq(runs.seats(run, nodes[0]).worth, type(uint32).max);
    }

    function test_a_reward_at_the_type_limit() public {
        IPolicies.Policy memory p = policy();
        (p.reward, p.maxUnits, p.bondBps) = (NODE_STAKE, 1, 0);
        switchTo(p);
        submit(0, 1);
        refusedUnits(1, abi.encodeWithSelector(IRuns.Overexposed.selector, 2, 1));
        p.reward = type(uint88).max;
        vm.expectRevert(abi.encodeWithSelector(IPolicies.InvalidPolicy.selector, bytes32("nodeStake")));
        policies.create(p, SPEC);
    }

    function test_an_accused_seat_waits_for_its_case() public {
        uint256 number = accuse(0, 1, submit(0, 1));
        refusedUnits(1, abi.encodeWithSelector(IRuns.CaseOpen.selector, 1));
        appeal(0, number);
        refusedUnits(1, abi.encodeWithSelector(IRuns.CaseOpen.selector, 1));
        vote(2, 0, number, false);
        vote(3, 0, number, false);
        submit(0, 1);
    }

    function refusedUnits(uint32 units, bytes memory why) internal {
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(nodes[0]);
        vm.expectRevert(why);
        runs.submit(run, ref.root, ref.step, ref.sequence, units, beacon);
    }

    function refused(uint32 step, uint32 sequence, bytes memory why) internal {
        bytes32 beacon = beaconOf(run, step);
        vm.prank(nodes[0]);
        vm.expectRevert(why);
        runs.submit(run, SPEC, step, sequence, 1, beacon);
    }
}
