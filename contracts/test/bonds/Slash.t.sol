// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBonds} from "../../src/interfaces/IBonds.sol";
import {InsufficientStake} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice lock, unlock, move and slash: what only Runs and Court may do.
contract SlashTest is World {
    address internal someone = address(0x5E);
    address internal finder = address(0xF1);

    function setUp() public override {
        super.setUp();
        bonds.deposit(someone, 100);
    }

    function test_only_runs_and_court_may() public {
        address[3] memory others = [STRANGER, OWNER, address(vouchers)];
        for (uint256 i; i < 3; ++i) {
            vm.startPrank(others[i]);
            expectRefusal(IBonds.NotSlasher.selector, others[i]);
            bonds.lock(someone, 1);
            expectRefusal(IBonds.NotSlasher.selector, others[i]);
            bonds.unlock(someone, 0);
            expectRefusal(IBonds.NotSlasher.selector, others[i]);
            bonds.move(someone, STRANGER, 0);
            expectRefusal(IBonds.NotSlasher.selector, others[i]);
            bonds.slash(someone, 1, finder, 0);
            vm.stopPrank();
        }
        vm.prank(address(runs));
        bonds.lock(someone, 1);
        vm.prank(address(bench));
        bonds.unlock(someone, 1);
    }

    function test_lock_takes_free_stake_only() public {
        vm.startPrank(address(runs));
        bonds.lock(someone, 70);
        expectRefusal(InsufficientStake.selector, 30, 31);
        bonds.lock(someone, 31);
        bonds.lock(someone, 30);
        assertEq(bonds.accounts(someone).locked, 100);
        bonds.unlock(someone, 100);
        vm.expectRevert(); // never more than is locked
        bonds.unlock(someone, 1);
    }

    function test_no_more_is_paid_than_was_taken() public {
        vm.startPrank(address(bench));
        bonds.lock(someone, 70);
        (IBonds.Payment[] memory charges, IBonds.Payment[] memory payments) =
            (new IBonds.Payment[](1), new IBonds.Payment[](2));
        charges[0] = IBonds.Payment(someone, 100);
        (payments[0], payments[1]) = (IBonds.Payment(finder, 50), IBonds.Payment(STRANGER, 50));
        bonds.disburse(charges, payments);
        assertEq(bonds.accounts(someone).active, 30);
        assertEq(bonds.accounts(finder).active, 50);
        assertEq(bonds.accounts(STRANGER).active, 20); // what is left
    }

    function test_move_keeps_stake_locked() public {
        vm.startPrank(address(runs));
        bonds.lock(someone, 70);
        vm.expectEmit(address(bonds));
        emit IBonds.Moved(someone, finder, 50);
        bonds.move(someone, finder, 50);
        assertEq(bonds.accounts(someone).active, 50);
        assertEq(bonds.accounts(someone).locked, 20);
        assertEq(bonds.accounts(finder).active, 50);
        assertEq(bonds.accounts(finder).locked, 50);
        vm.expectRevert(); // only what is locked
        bonds.move(someone, finder, 21);
    }

    function testFuzz_slash_takes_locked_stake_and_no_more(uint128 locked, uint128 amount, uint16 bps) public {
        locked = uint128(bound(locked, 0, 100));
        bps = uint16(bound(bps, 0, 10_000));
        vm.startPrank(address(bench));
        bonds.lock(someone, locked);
        uint128 total = bonds.total();
        uint128 taken = bonds.slash(someone, amount, finder, bps);
        assertEq(taken, amount < locked ? amount : locked);
        assertEq(bonds.accounts(someone).active, 100 - taken);
        assertEq(bonds.accounts(someone).locked, locked - taken);
        uint256 share = uint256(taken) * bps / 10_000;
        assertEq(bonds.accounts(finder).active, share);
        assertEq(bonds.accounts(SINK).active, taken - share);
        assertEq(bonds.total(), total); // it changes hands, and stays
    }

    function test_slash_leaves_leaving_stake_alone() public {
        vm.prank(someone);
        bonds.unbond(40);
        vm.startPrank(address(runs));
        bonds.lock(someone, 60);
        assertEq(bonds.slash(someone, 100, finder, 0), 60);
        vm.stopPrank();
        assertEq(bonds.accounts(someone).leaving, 40);
        pass(DELAY);
        vm.prank(someone);
        assertEq(bonds.withdraw(), 40);
    }

    function test_what_is_slashed_leaves_as_slowly_as_any_stake() public {
        vm.startPrank(address(bench));
        bonds.lock(someone, 100);
        bonds.slash(someone, 100, finder, 5_000);
        vm.startPrank(finder);
        bonds.unbond(50);
        pass(DELAY);
        assertEq(bonds.withdraw(), 50);
        assertEq(token.balanceOf(finder), 50);
    }

    function test_one_may_find_oneself() public {
        vm.startPrank(address(bench));
        bonds.lock(someone, 100);
        bonds.slash(someone, 40, someone, 5_000);
        assertEq(bonds.accounts(someone).active, 80);
        assertEq(bonds.accounts(someone).locked, 60);
    }
}
