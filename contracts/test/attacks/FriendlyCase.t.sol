// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A friend of the cheat brings the case first, to shield it from a harder one.
contract FriendlyCaseTest is World {
    IRuns.SubmissionRef internal cheat;

    function setUp() public override {
        super.setUp();
        cheat = submit(0, 1_000);
    }

    modifier convictedAllTheSame() {
        _;
        uint256 number = accuse(3, 4, cheat);
        pass(APPEAL);
        settle(0, number);
        assertTrue(runs.seats(run, nodes[0]).swept);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY - spent);
        assertEq(runs.funds(run).reserved, 0);
    }

    uint256 internal spent; // on fees and bonds

    function test_an_open_soft_case() public convictedAllTheSame {
        challenge(0, cheat);
    }

    function test_an_open_soft_case_on_trial() public convictedAllTheSame {
        appeal(0, challenge(0, cheat));
    }

    function test_a_soft_verdict() public convictedAllTheSame {
        challenge(0, cheat);
        pass(APPEAL);
        settle(0, 1);
        spent = FEE;
    }

    function test_a_soft_acquittal_by_friends() public convictedAllTheSame {
        uint256 number = challenge(0, cheat);
        appeal(0, number);
        vote(1, 0, number, false);
        vote(2, 0, number, false);
    }

    function test_an_overdue_soft_case_nobody_settled() public convictedAllTheSame {
        challenge(0, cheat);
        pass(WINDOW - 1);
    }

    function test_an_open_hard_case_on_a_sample_that_is_honest() public convictedAllTheSame {
        accuse(0, 1, cheat);
    }

    function test_a_hard_acquittal_by_friends() public convictedAllTheSame {
        uint256 number = accuse(0, 1, cheat);
        appeal(0, number);
        vote(2, 0, number, false);
        vote(3, 0, number, false);
    }

    function test_a_hard_case_without_a_quorum() public convictedAllTheSame {
        IPolicies.Policy memory p = policy();
        p.vote = 1 hours;
        switchTo(p);
        cheat = submit(0, 1_000);
        appeal(0, accuse(0, 1, cheat));
        pass(1 hours);
        settle(0, 1);
    }

    /// @dev Where verdicts are instant the friend's is the first of two.
    function test_an_instant_soft_verdict() public {
        switchTo(instantPolicy());
        cheat = submit(0, 1_000);
        challenge(0, cheat);
        accuse(3, 4, cheat);
        assertTrue(runs.seats(run, nodes[0]).swept);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - FEE - PENALTY);
    }

    /// @dev Friendly fees and appeals lost on purpose cost more than the penalty: half of a bond and more is the sink's.
    function test_draining_the_lock_first() public {
        IRuns.SubmissionRef[] memory submissions = submitMany(0, 5, 1);
        for (uint256 i; i < 5; ++i) {
            uint256 number = challenge(0, submissions[i]);
            appeal(0, number);
            poll(0, number, true);
        }
        uint256 friends;
        for (uint256 v; v < 3; ++v) {
            friends += bonds.accounts(validators[v]).active - STAKE;
        }
        assertGt(STAKE - bonds.accounts(operators[0]).active - friends, PENALTY);
        uint256 hard = accuse(3, 4, cheat);
        pass(APPEAL);
        settle(0, hard);
        assertEq(bonds.accounts(operators[0]).active, STAKE - NODE_STAKE);
    }
}
