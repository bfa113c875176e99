// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, TooEarly, WrongState} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice leave, ban and release: how service ends, and when the stake is free.
contract LeaveTest is World {
    function test_leave_ends_service_at_once() public {
        submit(0, 1);
        vm.prank(operators[0]);
        vm.expectEmit(address(runs));
        emit IRuns.Left(run, nodes[0], IRuns.Role.Left, block.timestamp);
        runs.leave(run, nodes[0]);
        assertRole(0, IRuns.Role.Left);
        cannotSubmit(0);
        vm.prank(operators[0]);
        expectRefusal(WrongState.selector);
        runs.leave(run, nodes[0]);
    }

    function test_only_the_operator_leaves_while_the_stake_suffices() public {
        address[3] memory others = [OWNER, nodes[0], operators[1]];
        for (uint256 i; i < 3; ++i) {
            vm.prank(others[i]);
            expectRefusal(Denied.selector, others[i]);
            runs.leave(run, nodes[0]);
        }
    }

    function test_anyone_ends_the_service_of_a_seat_short_of_stake() public {
        IPolicies.Policy memory p = policy();
        p.nodeStake = PENALTY + BOND + STRIKES * FEE;
        switchTo(p);
        publish(run);
        // a whole window of strikes does not do it
        IRuns.SubmissionRef[] memory list = submitMany(0, STRIKES, 1);
        uint256 number = challenge(0, list);
        pass(APPEAL);
        settle(0, number);
        vm.prank(STRANGER);
        expectRefusal(Denied.selector, STRANGER);
        runs.leave(run, nodes[0]);
        // one more does
        pass(WINDOW);
        number = challenge(0, submit(0, 1));
        pass(APPEAL);
        settle(0, number);
        assertEq(runs.seats(run, nodes[0]).locked, PENALTY + BOND - FEE);
        vm.prank(STRANGER);
        runs.leave(run, nodes[0]);
        assertRole(0, IRuns.Role.Left);
        seat(run, 0); // and with full stake it may come back
        assertEq(runs.seats(run, nodes[0]).locked, p.nodeStake);
    }

    function test_ban_takes_effect_after_the_notice() public {
        vm.prank(OWNER);
        vm.expectEmit(address(runs));
        emit IRuns.Left(run, nodes[0], IRuns.Role.Banned, block.timestamp + NOTICE);
        runs.ban(run, nodes[0]);
        pass(NOTICE - 1);
        submit(0, 1);
        pass(1);
        cannotSubmit(0);
    }

    function test_only_the_owner_bans_and_only_who_has_a_seat() public {
        expectRefusal(Denied.selector, address(this));
        runs.ban(run, nodes[0]);
        vm.startPrank(OWNER);
        expectRefusal(WrongState.selector);
        runs.ban(run, STRANGER);
        runs.ban(run, nodes[0]);
        expectRefusal(WrongState.selector); // a second ban would put the first off
        runs.ban(run, nodes[0]);
    }

    function test_who_is_banned_may_leave_sooner_and_stays_banned() public {
        vm.prank(OWNER);
        runs.ban(run, nodes[0]);
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        assertRole(0, IRuns.Role.Banned);
        assertEq(runs.seats(run, nodes[0]).until, block.timestamp);
        cannotSubmit(0);
    }

    function test_banning_who_left_gives_no_time_back() public {
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        uint40 until = runs.seats(run, nodes[0]).until;
        pass(10);
        vm.prank(OWNER);
        runs.ban(run, nodes[0]);
        assertEq(runs.seats(run, nodes[0]).until, until);
        cannotSubmit(0);
    }

    function test_stake_is_free_window_appeal_and_vote_after_service() public {
        submit(0, 1);
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        uint256 free = block.timestamp + SPAN;
        vm.warp(free - 1);
        expectRefusal(TooEarly.selector, free);
        runs.release(run, nodes[0]);
        runs.claim(run, nodes[0]);
        assertEq(runs.seats(run, nodes[0]).proven, 1);
        vm.warp(free);
        vm.expectEmit(address(runs));
        emit IRuns.Released(run, nodes[0], operators[0], NODE_STAKE);
        runs.release(run, nodes[0]);
        assertEq(bonds.accounts(operators[0]).locked, 0);
        assertEq(runs.seats(run, nodes[0]).locked, 0);
        assertEq(mostOf(nodes[0]), 0);
        assertEq(runs.seats(run, nodes[0]).proven, 0); // who comes back is a stranger
        expectRefusal(WrongState.selector);
        runs.release(run, nodes[0]);
    }

    function test_stake_stays_until_cases_close() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        challenge(0, ref);
        pass(SPAN);
        expectRefusal(IRuns.CaseOpen.selector, 1);
        runs.release(run, nodes[0]);
        settle(0, 1);
        runs.release(run, nodes[0]);
    }

    function test_who_serves_keeps_its_stake_locked() public {
        pass(100 days);
        expectRefusal(WrongState.selector);
        runs.release(run, nodes[0]);
        vm.prank(OWNER);
        runs.ban(run, nodes[0]);
        uint256 free = block.timestamp + NOTICE + SPAN;
        expectRefusal(TooEarly.selector, free);
        runs.release(run, nodes[0]);
    }

    function cannotSubmit(uint256 i) internal {
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[i]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(nodes[i]);
        expectRefusal(Denied.selector, nodes[i]);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
    }
}
