// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {InsufficientStake} from "../../src/interfaces/Errors.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A seat appeals more soft cases at once than it can pay for: each looked only at what earlier ones had cost by then.
contract FreeAppealsTest is World {
    uint256 internal constant KEYS = PENALTY / BOND; // lost appeals that the penalty pays for
    uint256 internal constant ALL = NODE_STAKE / BOND; // that the lock does

    function setUp() public override {
        super.setUp();
        for (uint256 v; v < 2; ++v) {
            vm.prank(validators[v]);
            bench.reinforce(run, STAKE - VALIDATOR_STAKE);
        }
        IRuns.SubmissionRef[] memory junk = submitMany(0, ALL + 1, 1);
        for (uint256 i; i <= ALL; ++i) {
            challenge(i % 2, junk[i]);
        }
    }

    function test_the_key_appeals_what_the_penalty_pays_for() public {
        for (uint256 i; i < KEYS; ++i) {
            byKey(i + 1);
        }
        vm.prank(nodes[0]);
        expectRefusal(InsufficientStake.selector, 0, BOND);
        court.appeal(run, nodes[0], KEYS + 1);
        for (uint256 i; i < KEYS; ++i) {
            poll(0, i + 1, true);
        }
        assertEq(runs.seats(run, nodes[0]).spent, PENALTY);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY - KEYS * FEE);
    }

    function test_the_operator_appeals_what_the_lock_pays_for() public {
        for (uint256 i; i < ALL; ++i) {
            i < KEYS ? byKey(i + 1) : appeal(0, i + 1);
        }
        vm.prank(operators[0]);
        expectRefusal(InsufficientStake.selector, 0, BOND);
        court.appeal(run, nodes[0], ALL + 1);
        uint256 sink = bonds.accounts(SINK).active;
        for (uint256 i; i < ALL; ++i) {
            poll(0, i + 1, true);
            assertGt(bonds.accounts(SINK).active, sink); // every jury was paid, and something was left
            sink = bonds.accounts(SINK).active;
        }
    }

    /// @dev What an appeal keeps is free when it is won, when it comes to nothing, and when an accusation takes its last submission.
    function test_what_ends_without_a_loss_can_be_risked_again() public {
        for (uint256 i; i < KEYS; ++i) {
            byKey(i + 1);
        }
        poll(0, 1, false);
        byKey(KEYS + 1);
        accuse(2, 3, IRuns.SubmissionRef(nodes[0], 0, 1, keccak256(abi.encode(run, nodes[0], 0, 1))));
        byKey(KEYS + 2); // case 2 was about that one
    }

    function test_what_finds_no_majority_can_be_risked_again() public {
        for (uint256 i; i < KEYS; ++i) {
            byKey(i + 1);
        }
        pass(VOTE);
        settle(0, 1);
        challengeAgain(2, 0, 1);
        byKey(1);
        vm.prank(nodes[0]);
        vm.expectRevert();
        court.appeal(run, nodes[0], KEYS + 1);
    }

    /// @dev A validator's appeal is at its own risk, and a lost one of the seat's counts once.
    function test_only_the_seats_own_count() public {
        vm.prank(validators[4]);
        court.appeal(run, nodes[0], 1);
        for (uint256 i; i < KEYS; ++i) {
            byKey(i + 2);
        }
        poll(0, 1, true);
        poll(0, 2, true);
        vm.prank(nodes[0]);
        expectRefusal(InsufficientStake.selector, 0, BOND);
        court.appeal(run, nodes[0], KEYS + 2);
    }

    function byKey(uint256 number) private {
        vm.prank(nodes[0]);
        court.appeal(run, nodes[0], number);
    }
}
