// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A run takes from an operator what the operator staked elsewhere.
contract DrainAcrossRunsTest is World {
    function test_a_run_that_locks_nothing_can_slash_nothing() public {
        IPolicies.Policy memory p = policy();
        (p.nodeStake, p.penalty) = (0, 1_000_000 * MUR);
        vm.expectRevert(abi.encodeWithSelector(IPolicies.InvalidPolicy.selector, bytes32("nodeStake")));
        policies.create(p, SPEC);
        (p.nodeStake, p.penalty, p.bond, p.fee) = (0, 0, 0, 1);
        (p.appeal, p.vote) = (0, 0);
        vm.expectRevert(abi.encodeWithSelector(IPolicies.InvalidPolicy.selector, bytes32("nodeStake")));
        policies.create(p, SPEC);
    }

    /// @dev The attacker owns a run, its trainer and its whole bench, and does its worst with instant verdicts.
    function test_a_run_takes_its_own_lock_and_leaves_the_others() public {
        uint256 honest = run;
        IPolicies.Policy memory p = instantPolicy();
        (p.nodeStake, p.penalty, p.bond, p.fee, p.coSigners) = (10 * MUR, 9 * MUR, 0, uint96(MUR / 4), 0);
        switchTo(p);
        IRuns.SubmissionRef[] memory submissions = submitMany(0, 5, 1);
        for (uint256 i; i < 5; ++i) {
            challenge(i, submissions[i]);
        }
        pass(WINDOW); // strikes begin anew
        IRuns.SubmissionRef[] memory more = submitMany(0, 3, 1);
        challenge(1, one(more[0]));
        accuse(2, 3, more[1]);
        assertEq(runs.seats(run, nodes[0]).locked, 0);
        assertEq(runs.seats(honest, nodes[0]).locked, NODE_STAKE);
        assertEq(bonds.accounts(operators[0]).active, STAKE - 10 * MUR);
        assertEq(bonds.accounts(operators[0]).locked, NODE_STAKE);
        run = honest;
        submit(0, 1); // and the honest run goes on
    }
}
