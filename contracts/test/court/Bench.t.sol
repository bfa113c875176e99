// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, InsufficientStake, TooEarly, WrongState, ZeroAmount} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice approve, enlist, reinforce, unseat and release: who sits on the bench, and what its stake does.
contract BenchTest is World {
    uint256 internal other; // a run without validators

    function setUp() public override {
        super.setUp();
        other = open(policy());
    }

    function test_the_owner_approves_and_the_validator_takes_its_seat() public {
        vm.expectEmit(address(bench));
        emit IBench.ValidatorApproved(other, validators[0], true);
        approve(other, validators[0], true);
        vm.prank(validators[0]);
        vm.expectEmit(address(bench));
        emit IBench.ValidatorSeated(other, validators[0], true, 0);
        bench.enlist(other, true);
        IBench.Validator memory v = bench.validators(other, validators[0]);
        assertEq(v.since, block.timestamp);
        assertEq(v.until, 0);
        assertEq(v.locked, VALIDATOR_STAKE);
        assertEq(bench.seated(other), 1);
        assertEq(bonds.accounts(validators[0]).locked, 2 * VALIDATOR_STAKE);
    }

    function test_only_the_owner_approves() public {
        expectRefusal(Denied.selector, address(this));
        bench.approve(other, validators[0], true);
        vm.prank(OWNER);
        expectRefusal(Denied.selector, OWNER);
        bench.approve(99, validators[0], true);
    }

    function test_only_the_approved_enlist_once_and_with_stake() public {
        vm.prank(validators[0]);
        expectRefusal(Denied.selector, validators[0]);
        bench.enlist(other, true);
        approve(other, validators[0], true);
        enlist(other, validators[0], true);
        vm.prank(validators[0]);
        expectRefusal(WrongState.selector);
        bench.enlist(other, true);
        approve(other, STRANGER, true);
        vm.prank(STRANGER);
        expectRefusal(InsufficientStake.selector, 0, VALIDATOR_STAKE);
        bench.enlist(other, true);
    }

    function test_who_gives_up_its_seat_serves_on_until_its_cases_are_over() public {
        vm.prank(validators[0]);
        vm.expectEmit(address(bench));
        emit IBench.ValidatorSeated(run, validators[0], false, block.timestamp + SPAN);
        bench.enlist(run, false);
        assertEq(bench.seated(run), 4);
        vm.prank(validators[0]);
        expectRefusal(WrongState.selector);
        bench.enlist(run, false);
        IRuns.SubmissionRef memory before = submit(0, 1);
        pass(1);
        IRuns.SubmissionRef memory ref = submit(0, 1);
        pass(WINDOW - 2);
        challenge(0, before);
        vm.prank(validators[0]);
        expectRefusal(IBench.NotOnBench.selector, validators[0]);
        court.challenge(run, one(ref), EVIDENCE);
    }

    function test_removal_by_the_owner_takes_as_long() public {
        vm.prank(OWNER);
        vm.expectEmit(address(bench));
        emit IBench.ValidatorSeated(run, validators[0], false, block.timestamp + SPAN);
        bench.approve(run, validators[0], false);
        assertEq(bench.validators(run, validators[0]).until, block.timestamp + SPAN);
        assertEq(bench.seated(run), 4);
        pass(10);
        approve(run, validators[0], false); // a second removal changes nothing
        assertEq(bench.validators(run, validators[0]).until, block.timestamp + SPAN - 10);
        assertEq(bench.seated(run), 4);
    }

    function test_it_may_come_back_when_its_term_is_over() public {
        enlist(run, validators[0], false);
        vm.prank(validators[0]);
        expectRefusal(WrongState.selector);
        bench.enlist(run, true);
        pass(SPAN);
        uint128 locked = bonds.accounts(validators[0]).locked;
        enlist(run, validators[0], true);
        assertEq(bonds.accounts(validators[0]).locked, locked); // nothing twice
        assertEq(bench.seated(run), 5);
        assertEq(bench.validators(run, validators[0]).since, block.timestamp);
        approve(run, validators[1], false);
        pass(SPAN);
        vm.prank(validators[1]);
        expectRefusal(Denied.selector, validators[1]); // but not who lost its approval
        bench.enlist(run, true);
    }

    function test_stake_is_free_when_nothing_it_signed_can_be_held_against_it() public {
        expectRefusal(WrongState.selector);
        bench.release(run, validators[0]);
        enlist(run, validators[0], false);
        uint256 free = block.timestamp + 3 * uint256(SPAN);
        vm.warp(free - 1);
        expectRefusal(TooEarly.selector, free);
        bench.release(run, validators[0]);
        vm.warp(free);
        vm.expectEmit(address(bench));
        emit IBench.ValidatorReleased(run, validators[0], VALIDATOR_STAKE);
        bench.release(run, validators[0]);
        assertEq(bonds.accounts(validators[0]).locked, 0);
        expectRefusal(WrongState.selector);
        bench.release(run, validators[0]);
    }

    function test_stake_stays_while_a_case_is_open() public {
        challenge(0, submit(0, 1));
        enlist(run, validators[0], false);
        pass(3 * uint256(SPAN));
        expectRefusal(WrongState.selector);
        bench.release(run, validators[0]);
        settle(0, 1);
        bench.release(run, validators[0]);
    }

    function test_reinforce_locks_more_and_opens_room_for_cases() public {
        for (uint256 i; i < VALIDATOR_STAKE / BOND; ++i) {
            challenge(0, submit(0, 1));
        }
        IRuns.SubmissionRef memory ref = submit(0, 1);
        vm.prank(validators[0]);
        expectRefusal(InsufficientStake.selector, VALIDATOR_STAKE, VALIDATOR_STAKE + BOND);
        court.challenge(run, one(ref), EVIDENCE);
        vm.startPrank(validators[0]);
        vm.expectEmit(address(bench));
        emit IBench.ValidatorReinforced(run, validators[0], VALIDATOR_STAKE + BOND);
        bench.reinforce(run, BOND);
        court.challenge(run, one(ref), EVIDENCE);
        assertEq(bonds.accounts(validators[0]).locked, VALIDATOR_STAKE + BOND);
        expectRefusal(ZeroAmount.selector);
        bench.reinforce(run, 0);
        expectRefusal(WrongState.selector);
        bench.reinforce(other, 1);
    }

    function test_anyone_unseats_a_validator_that_cannot_cover_a_bond() public {
        expectRefusal(WrongState.selector);
        bench.unseat(run, validators[0]);
        for (uint256 i; i < VALIDATOR_STAKE / BOND; ++i) {
            lose(0);
            assertEq(bench.validators(run, validators[0]).locked, VALIDATOR_STAKE - (i + 1) * BOND);
        }
        vm.prank(STRANGER);
        bench.unseat(run, validators[0]);
        assertEq(bench.validators(run, validators[0]).until, block.timestamp + SPAN);
        assertEq(bench.seated(run), 4);
        expectRefusal(WrongState.selector);
        bench.unseat(run, validators[0]);
    }

    function test_one_that_covers_a_bond_stays() public {
        for (uint256 i; i < VALIDATOR_STAKE / BOND - 1; ++i) {
            lose(0);
        }
        assertEq(bench.validators(run, validators[0]).locked, BOND);
        expectRefusal(WrongState.selector);
        bench.unseat(run, validators[0]);
    }

    /// @dev Validator `v` loses a case.
    function lose(uint256 v) internal {
        uint256 number = challenge(v, submit(0, 1));
        appeal(0, number);
        vote(2, 0, number, false);
        vote(3, 0, number, false);
    }
}
