// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Runs} from "../src/Runs.sol";
import {Base} from "./support/Base.sol";

/// @notice claim and claimable: nothing before the window, everything after 1.2 windows.
contract RewardsTest is Base {
    function test_aClaimPaysTheOperatorWhoeverCalls() public {
        submit(0, 100);
        pass(ripening(WINDOW));
        vm.expectEmit(address(runs));
        emit Runs.Claimed(run, nodes[0], operators[0], 100, 100 * REWARD);
        vm.prank(STRANGER);
        assertEq(runs.claim(run, nodes[0]), 100 * REWARD);
        assertEq(token.balanceOf(operators[0]), 100 * REWARD);
        assertEq(fundsOf(run).reserved, 0);
        assertEq(fundsOf(run).free, BUDGET - 100 * REWARD);
        assertEq(token.balanceOf(address(runs)), BUDGET - 100 * REWARD);
    }

    function test_aUnitIsPaidOnce() public {
        submit(0, 100);
        pass(ripening(WINDOW));
        runs.claim(run, nodes[0]);
        assertEq(runs.claim(run, nodes[0]), 0);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 0);
    }

    function test_onlyOfARunIsAnythingClaimable() public {
        expectRefusal(Runs.NoSuchRun.selector);
        runs.claimable(run + 1, nodes[0]);
        (uint256 ready, uint256 pending) = runs.claimable(run, STRANGER);
        assertEq(ready + pending, 0);
    }

    function test_whoNeverHadASeatClaimsNothing() public {
        expectRefusal(Runs.WrongState.selector);
        runs.claim(run, STRANGER);
        expectRefusal(Runs.WrongState.selector);
        runs.claim(run + 1, nodes[0]);
    }

    function test_whoHasLeftIsStillPaid() public {
        submit(0, 100);
        leaveSeat(run, 0);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 100 * REWARD);
    }

    /// @dev The window need not divide by five: then the epoch is rounded up, never down.
    function testFuzz_aRewardIsPaidAfterItsWindowAndNotBefore(uint32 window, uint256 start, uint32 units, uint256 wait)
        public
    {
        Runs.Policy memory p = policy();
        p.window = uint32(bound(window, 5, 4 days));
        switchTo(p);
        units = uint32(bound(units, 1, MAX_UNITS));
        wait = bound(wait, 0, 2 * uint256(p.window));
        pass(bound(start, 0, p.window)); // anywhere within an epoch

        submit(0, units);
        uint256 due = uint256(units) * REWARD;
        pass(wait);
        uint256 paid = runs.claim(run, nodes[0]);
        assertTrue(paid == 0 || paid == due);
        if (wait < p.window) assertEq(paid, 0);
        if (wait >= ripening(p.window)) assertEq(paid, due);
        if (p.window % 5 == 0) assertEq(ripening(p.window), p.window + p.window / 5); // 1.2 windows exactly
    }

    function test_noSecondOfTheWindowPays() public {
        uint256 epoch = WINDOW / 5;
        vm.warp((block.timestamp / epoch + 1) * epoch - 1); // last second of an epoch: the shortest wait
        submit(0, 100);
        pass(WINDOW);
        assertEq(runs.claim(run, nodes[0]), 0);
        pass(1);
        assertEq(runs.claim(run, nodes[0]), 100 * REWARD);

        submit(0, 100); // first second of an epoch: the longest wait
        pass(ripening(WINDOW) - 1);
        assertEq(runs.claim(run, nodes[0]), 0);
        pass(1);
        assertEq(runs.claim(run, nodes[0]), 100 * REWARD);
    }

    /// @dev A busy node: at every claim, at least what is 1.2 windows old and at most what is one window old is paid.
    function testFuzz_claimsLieBetweenOneAndOnePointTwoWindows(uint32[24] memory waits, uint16[24] memory amounts)
        public
    {
        uint256[24] memory times;
        uint256[24] memory units;
        uint256 paid;
        for (uint256 i; i < 24; ++i) {
            pass(waits[i] % (WINDOW / 2));
            publish(run);
            (times[i], units[i]) = (block.timestamp, bound(amounts[i], 1, MAX_UNITS));
            submit(0, uint32(units[i]));

            (uint256 ready, uint256 pending) = runs.claimable(run, nodes[0]);
            uint256 amount = runs.claim(run, nodes[0]);
            assertEq(amount, ready * REWARD);
            paid += ready;
            assertGe(paid, _olderThan(times, units, i, ripening(WINDOW)));
            assertLe(paid, _olderThan(times, units, i, WINDOW));
            assertEq(paid + pending, _olderThan(times, units, i, 0));
            assertEq(fundsOf(run).reserved, pending * REWARD);
        }
    }

    function _olderThan(uint256[24] memory times, uint256[24] memory units, uint256 last, uint256 age)
        private
        view
        returns (uint256 sum)
    {
        for (uint256 i; i <= last; ++i) {
            if (times[i] + age <= block.timestamp) sum += units[i];
        }
    }
}
