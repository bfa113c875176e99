// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice offer and accept: an operator hands a seat, with its stake, to another.
contract HandOverTest is World {
    address internal heir = address(0x8E12);

    function test_the_seat_goes_over_with_stake_and_rewards() public {
        submit(0, 100);
        vm.prank(operators[0]);
        vm.expectEmit(address(runs));
        emit IRuns.Offered(run, nodes[0], heir, NEVER);
        runs.offer(run, nodes[0], heir, NEVER);
        vm.prank(heir);
        vm.expectEmit(address(runs));
        emit IRuns.HandedOver(run, nodes[0], heir, operators[0]);
        runs.accept(run, nodes[0]);
        assertEq(runs.seats(run, nodes[0]).operator, heir);
        assertEq(bonds.accounts(heir).active, NODE_STAKE);
        assertEq(bonds.accounts(heir).locked, NODE_STAKE);
        assertEq(bonds.accounts(operators[0]).locked, 0);
        assertEq(bonds.accounts(operators[0]).active, STAKE - NODE_STAKE);
        pass(ripening(WINDOW));
        runs.claim(run, nodes[0]);
        assertEq(token.balanceOf(heir), 100 * uint256(REWARD));
    }

    function test_it_works_for_the_heir_from_the_next_weights_on() public {
        handOver();
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, 0);
        uint256 published = weights.publications(run, 0).number;
        vm.prank(nodes[0]);
        expectRefusal(IRuns.SeatTooYoung.selector, block.number, published);
        runs.submit(run, ref.root, 0, 0, 1, beacon);
        publish(run);
        submit(0, 1);
    }

    function test_verdicts_on_old_work_fall_on_the_stake_that_came_along() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        handOver();
        uint256 number = accuse(0, 1, ref);
        pass(APPEAL);
        settle(0, number);
        assertEq(bonds.accounts(heir).active, NODE_STAKE - PENALTY);
        assertEq(bonds.accounts(operators[0]).active, STAKE - NODE_STAKE);
    }

    function test_an_accused_seat_keeps_its_case() public {
        uint256 number = accuse(0, 1, submit(0, 100));
        handOver();
        vm.prank(heir);
        court.appeal(run, nodes[0], number);
    }

    function test_only_the_operator_offers_and_only_the_chosen_accepts() public {
        vm.prank(operators[1]);
        expectRefusal(Denied.selector, operators[1]);
        runs.offer(run, nodes[0], operators[1], NEVER);
        vm.prank(heir);
        expectRefusal(Denied.selector, heir);
        runs.accept(run, nodes[0]);
        vm.startPrank(operators[0]);
        runs.offer(run, nodes[0], heir, NEVER);
        runs.offer(run, nodes[0], address(0), NEVER); // taken back
        vm.stopPrank();
        vm.prank(heir);
        expectRefusal(Denied.selector, heir);
        runs.accept(run, nodes[0]);
        handOver();
        vm.prank(operators[0]);
        expectRefusal(Denied.selector, operators[0]);
        runs.offer(run, nodes[0], operators[0], NEVER);
        vm.prank(heir);
        expectRefusal(Denied.selector, heir); // an offer serves once
        runs.accept(run, nodes[0]);
    }

    function test_the_heir_has_the_seat_in_its_hands() public {
        handOver();
        vm.prank(operators[0]);
        expectRefusal(Denied.selector, operators[0]);
        runs.leave(run, nodes[0]);
        vm.prank(heir);
        runs.leave(run, nodes[0]);
        pass(SPAN);
        runs.release(run, nodes[0]);
        assertEq(bonds.accounts(heir).locked, 0);
        vm.prank(heir);
        bonds.unbond(NODE_STAKE);
    }

    function handOver() internal {
        vm.prank(operators[0]);
        runs.offer(run, nodes[0], heir, NEVER);
        vm.prank(heir);
        runs.accept(run, nodes[0]);
    }
}
