// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {NoSuchRun, WrongState} from "../../src/interfaces/Errors.sol";
import {ReentrantToken} from "../support/HostileTokens.sol";
import {Wallet} from "../support/Wallet.sol";
import {World} from "../support/World.sol";

contract ClaimTest is World {
    function testFuzz_no_reward_before_the_window_all_after(uint256 start, uint256 wait, uint32 units) public {
        units = uint32(bound(units, 1, MAX_UNITS));
        pass(bound(start, 0, 30 days));
        submit(0, units);
        wait = bound(wait, 0, 3 * uint256(WINDOW));
        pass(wait);
        (uint256 ready, uint256 pending) = runs.claimable(run, nodes[0]);
        uint256 got = runs.claim(run, nodes[0]);
        assertEq(got, ready * REWARD);
        assertEq(ready + pending, units);
        if (wait < WINDOW) assertEq(got, 0);
        if (wait >= ripening(WINDOW)) assertEq(got, uint256(units) * REWARD);
        assertEq(token.balanceOf(operators[0]), got);
        assertEq(runs.funds(run).reserved, uint256(units) * REWARD - got);
    }

    /// @dev A fifth of nine seconds is two, rounded up: were it one, six of them would be over before the window is.
    function test_a_window_that_five_does_not_divide_is_no_shorter() public {
        IPolicies.Policy memory p = policy();
        p.window = 9;
        switchTo(p);
        submit(0, 100);
        for (uint256 wait = 1; wait < 9; ++wait) {
            pass(1);
            (uint256 ready,) = runs.claimable(run, nodes[0]);
            assertEq(ready, 0);
        }
    }

    function test_anyone_claims_for_the_operator_and_nothing_twice() public {
        submit(0, 100);
        pass(ripening(WINDOW));
        vm.prank(STRANGER);
        vm.expectEmit(address(runs));
        emit IRuns.Claimed(run, nodes[0], operators[0], 100, 100 * uint256(REWARD));
        assertEq(runs.claim(run, nodes[0]), 100 * uint256(REWARD));
        assertEq(runs.claim(run, nodes[0]), 0);
        assertEq(token.balanceOf(operators[0]), 100 * uint256(REWARD));
        assertEq(token.balanceOf(STRANGER), 0);
    }

    function test_work_done_since_does_not_hold_up_what_has_matured() public {
        for (uint256 i; i < 20; ++i) {
            submit(0, 10);
            pass(3 hours);
        }
        uint256 got = runs.claim(run, nodes[0]);
        assertGe(got, (20 - 10) * 10 * uint256(REWARD)); // older than 1.2 windows
        assertLe(got, (20 - 8) * 10 * uint256(REWARD)); // older than the window
        pass(ripening(WINDOW));
        assertEq(got + runs.claim(run, nodes[0]), 200 * uint256(REWARD));
    }

    function test_what_matures_under_a_hard_case_waits_for_it() public {
        submit(0, 50);
        pass(WINDOW / 5 * 3); // three buckets on
        IRuns.SubmissionRef memory ref = submit(0, 30);
        pass(WINDOW / 5 * 3);
        uint256 number = accuse(0, 1, ref); // the first 50 matured just before
        (uint256 ready, uint256 pending) = runs.claimable(run, nodes[0]);
        assertEq(ready, 50);
        assertEq(pending, 30);
        assertEq(runs.claim(run, nodes[0]), 50 * uint256(REWARD));
        pass(APPEAL - 1);
        assertEq(runs.claim(run, nodes[0]), 0);
        appeal(0, number);
        pass(WINDOW);
        assertEq(runs.claim(run, nodes[0]), 0);
        vote(2, 0, number, false);
        vote(3, 0, number, false);
        assertEq(runs.claim(run, nodes[0]), 30 * uint256(REWARD));
    }

    function test_work_accepted_beside_the_accused_waits_too() public {
        IRuns.SubmissionRef memory ref = submit(0, 30);
        submit(0, 70);
        pass(WINDOW - 1);
        uint256 number = accuse(0, 1, ref);
        pass(APPEAL - 1);
        appeal(0, number);
        (uint256 ready, uint256 pending) = runs.claimable(run, nodes[0]);
        assertEq(ready, 0); // 70 matured, after the accusation
        assertEq(pending, 100);
        assertEq(runs.claim(run, nodes[0]), 0);
        pass(VOTE);
        settle(0, number); // no quorum: soft
        assertEq(runs.claim(run, nodes[0]), 70 * uint256(REWARD));
    }

    function test_who_never_sat_claims_nothing() public {
        expectRefusal(WrongState.selector);
        runs.claim(run, STRANGER);
        expectRefusal(NoSuchRun.selector, 9);
        runs.claimable(9, STRANGER);
    }

    function test_the_banned_keep_what_they_earned() public {
        submit(0, 100);
        vm.prank(OWNER);
        runs.ban(run, nodes[0]);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 100 * uint256(REWARD));
    }

    function test_reentering_claim_pays_nothing_twice() public {
        ReentrantToken re = new ReentrantToken(SUPPLY);
        deployOver(IERC20(address(re)));
        Wallet thief = new Wallet();
        for (uint256 i; i < 5; ++i) {
            bonds.deposit(validators[i], STAKE);
        }
        bonds.deposit(operators[1], STAKE);
        bonds.deposit(operators[2], STAKE);
        bonds.deposit(address(thief), STAKE);
        operators[0] = address(thief);
        run = open(policy());
        Consent memory c = consentOf(run, 0);
        bytes memory signature = signConsent(c, keys[0]);
        thief.act(
            address(runs),
            abi.encodeCall(runs.join, (run, c.node, c.peer, c.hardware, c.deadline, signature, bytes("")))
        );
        for (uint256 i; i < 5; ++i) {
            approve(run, validators[i], true);
            enlist(run, validators[i], true);
        }
        publish(run);
        submit(0, 100);
        pass(ripening(WINDOW));
        bytes memory claim = abi.encodeCall(runs.claim, (run, nodes[0]));
        re.arm(address(thief), abi.encodeCall(thief.act, (address(runs), claim)));
        runs.claim(run, nodes[0]);
        assertEq(re.balanceOf(address(thief)), 100 * uint256(REWARD));
        assertEq(runs.funds(run).reserved, 0);
    }
}
