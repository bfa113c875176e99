// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20Errors} from "@openzeppelin/contracts/interfaces/draft-IERC6093.sol";
import {Bonds} from "../src/Bonds.sol";
import {Base, Records} from "./support/Base.sol";

/// @notice Bonds alone: this contract is the slasher.
contract BondsTest is Base {
    address internal constant ALICE = address(0xA1);
    address internal constant BOB = address(0xB0);
    address internal constant FINDER = address(0xF1);

    function setUp() public override {
        super.setUp();
        bonds = new Bonds(token, DELAY, SINK);
        token.approve(address(bonds), type(uint256).max);
        bonds.deposit(ALICE, 100 * MUR);
        bonds.deposit(BOB, 100 * MUR);
    }

    function _unbond(uint128 amount) private {
        vm.prank(ALICE);
        bonds.unbond(amount);
    }

    function _withdraw() private returns (uint256) {
        vm.prank(ALICE);
        return bonds.withdraw();
    }

    function _assertAccount(uint128 active, uint128 locked, uint128 leaving) private view {
        Bonds.Account memory a = accountOf(ALICE);
        assertEq(a.active, active);
        assertEq(a.locked, locked);
        assertEq(a.leaving, leaving);
        assertEq(token.balanceOf(address(bonds)), bonds.total());
    }

    function test_theCreatorIsTheOnlySlasher() public {
        assertEq(bonds.slasher(), address(this));
        assertEq(address(bonds.token()), address(token));
        assertEq(bonds.sink(), SINK);
        assertEq(bonds.delay(), DELAY);
        vm.startPrank(ALICE);
        expectRefusal(Bonds.NotSlasher.selector);
        bonds.lock(BOB, 1);
        expectRefusal(Bonds.NotSlasher.selector);
        bonds.unlock(BOB, 1);
        expectRefusal(Bonds.NotSlasher.selector);
        bonds.slash(BOB, 1, ALICE, 10_000);
        vm.stopPrank();
    }

    // ---- deposit ----------------------------------------------------------------------------------------------------

    function test_aDepositIsActiveAtOnceAndPaidByTheCaller() public {
        uint256 before = token.balanceOf(address(this));
        vm.expectEmit(address(bonds));
        emit Bonds.Deposited(ALICE, 5 * MUR);
        bonds.deposit(ALICE, 5 * MUR);
        _assertAccount(105 * MUR, 0, 0);
        assertEq(bonds.total(), 205 * MUR);
        assertEq(before - token.balanceOf(address(this)), 5 * MUR);
    }

    function test_aDepositNeedsAnAllowance() public {
        vm.expectRevert(
            abi.encodeWithSelector(IERC20Errors.ERC20InsufficientAllowance.selector, address(bonds), 0, 5 * MUR)
        );
        vm.prank(ALICE);
        bonds.deposit(ALICE, 5 * MUR);
    }

    // ---- the way out ------------------------------------------------------------------------------------------------

    function test_unbondingStakeStopsBeingActive() public {
        vm.expectEmit(address(bonds));
        emit Bonds.Unbonding(ALICE, 30 * MUR, uint64(block.timestamp) + DELAY);
        _unbond(30 * MUR);
        _assertAccount(70 * MUR, 0, 30 * MUR);
        expectRefusal(Bonds.InsufficientStake.selector, 70 * MUR, 71 * MUR);
        bonds.lock(ALICE, 71 * MUR);
    }

    function test_lockedStakeCannotUnbond() public {
        bonds.lock(ALICE, 60 * MUR);
        expectRefusal(Bonds.InsufficientStake.selector, 40 * MUR, 40 * MUR + 1);
        _unbond(40 * MUR + 1);
        _unbond(40 * MUR);
        _assertAccount(60 * MUR, 60 * MUR, 40 * MUR);
    }

    function test_aSecondUnbondingRestartsTheClockOfTheFirst() public {
        _unbond(10 * MUR);
        pass(DELAY - 1);
        _unbond(5 * MUR);
        uint256 readyAt = block.timestamp + DELAY;
        assertEq(accountOf(ALICE).readyAt, readyAt);
        vm.warp(readyAt - 1);
        expectRefusal(Bonds.TooEarly.selector, readyAt);
        _withdraw();
        vm.warp(readyAt);
        assertEq(_withdraw(), 15 * MUR);
    }

    function testFuzz_stakeLeavesAfterTheDelayAndNotBefore(uint128 amount, uint256 wait) public {
        amount = uint128(bound(amount, 1, 100 * MUR));
        wait = bound(wait, 0, 2 * DELAY);
        _unbond(amount);
        uint256 readyAt = block.timestamp + DELAY;
        pass(wait);
        if (wait < DELAY) {
            expectRefusal(Bonds.TooEarly.selector, readyAt);
            _withdraw();
        } else {
            assertEq(_withdraw(), amount);
            assertEq(token.balanceOf(ALICE), amount);
        }
    }

    function test_withdrawalPaysOnce() public {
        _unbond(30 * MUR);
        pass(DELAY);
        vm.expectEmit(address(bonds));
        emit Bonds.Withdrawn(ALICE, 30 * MUR);
        assertEq(_withdraw(), 30 * MUR);
        assertEq(_withdraw(), 0);
        assertEq(token.balanceOf(ALICE), 30 * MUR);
        assertEq(bonds.total(), 170 * MUR);
        _assertAccount(70 * MUR, 0, 0);
    }

    function test_leavingStakeMayReturn() public {
        _unbond(30 * MUR);
        vm.expectEmit(address(bonds));
        emit Bonds.Rebonded(ALICE, 20 * MUR);
        vm.prank(ALICE);
        bonds.rebond(20 * MUR);
        _assertAccount(90 * MUR, 0, 10 * MUR);
        expectRefusal(Bonds.InsufficientStake.selector, 10 * MUR, 10 * MUR + 1);
        vm.prank(ALICE);
        bonds.rebond(10 * MUR + 1);
    }

    // ---- locks ------------------------------------------------------------------------------------------------------

    function test_locksAddUpToTheActiveStakeAndNoFurther() public {
        bonds.lock(ALICE, 60 * MUR);
        bonds.lock(ALICE, 40 * MUR);
        _assertAccount(100 * MUR, 100 * MUR, 0);
        expectRefusal(Bonds.InsufficientStake.selector, 0, 1);
        bonds.lock(ALICE, 1);
        bonds.unlock(ALICE, 40 * MUR);
        _assertAccount(100 * MUR, 60 * MUR, 0);
    }

    function test_unlockingMoreThanASlashLeftUnlocksWhatIsThere() public {
        bonds.lock(ALICE, 60 * MUR);
        bonds.slash(ALICE, 90 * MUR, FINDER, 0);
        _assertAccount(10 * MUR, 10 * MUR, 0);
        bonds.unlock(ALICE, 60 * MUR);
        _assertAccount(10 * MUR, 0, 0);
    }

    // ---- slash ------------------------------------------------------------------------------------------------------

    function test_aSlashIsSharedByFinderAndSink() public {
        vm.expectEmit(address(bonds));
        emit Bonds.Slashed(ALICE, 10 * MUR, FINDER, 2 * MUR);
        assertEq(bonds.slash(ALICE, 10 * MUR, FINDER, 2_000), 10 * MUR);
        assertEq(token.balanceOf(FINDER), 2 * MUR);
        assertEq(token.balanceOf(SINK), 8 * MUR);
        assertEq(bonds.total(), 190 * MUR);
        _assertAccount(90 * MUR, 0, 0);
    }

    function test_aSlashTakesActiveStakeBeforeLeavingStake() public {
        _unbond(40 * MUR);
        bonds.slash(ALICE, 50 * MUR, FINDER, 0);
        _assertAccount(10 * MUR, 0, 40 * MUR);
        bonds.slash(ALICE, 30 * MUR, FINDER, 0);
        _assertAccount(0, 0, 20 * MUR);
        pass(DELAY);
        assertEq(_withdraw(), 20 * MUR);
    }

    function test_stakePastItsDelayIsSlashableUntilWithdrawn() public {
        _unbond(100 * MUR);
        pass(2 * DELAY);
        assertEq(bonds.slash(ALICE, 60 * MUR, FINDER, 0), 60 * MUR);
        assertEq(_withdraw(), 40 * MUR);
    }

    function test_aSlashOfNothingTakesNothing() public {
        assertEq(bonds.slash(STRANGER, 50 * MUR, FINDER, 5_000), 0);
        assertEq(token.balanceOf(FINDER), 0);
        assertEq(token.balanceOf(SINK), 0);
        assertEq(bonds.total(), 200 * MUR);
    }

    /// @dev Whatever is asked for: what there is and no more is taken, all of it arrives, and Bob is not touched.
    function testFuzz_aSlashTakesAtMostWhatThereIs(uint128 locked, uint128 leaving, uint128 amount, uint16 share)
        public
    {
        leaving = uint128(bound(leaving, 0, 100 * MUR));
        locked = uint128(bound(locked, 0, 100 * MUR - leaving));
        amount = uint128(bound(amount, 0, 200 * MUR));
        share = uint16(bound(share, 0, 10_000));
        _unbond(leaving);
        bonds.lock(ALICE, locked);
        uint128 taken = bonds.slash(ALICE, amount, FINDER, share);

        assertEq(taken, amount < 100 * MUR ? amount : 100 * MUR);
        assertEq(token.balanceOf(FINDER), uint256(taken) * share / 10_000);
        assertEq(token.balanceOf(FINDER) + token.balanceOf(SINK), taken);
        uint128 active = 100 * MUR - leaving;
        active -= amount < active ? amount : active;
        _assertAccount(active, locked < active ? locked : active, 100 * MUR - taken - active);
        assertEq(accountOf(BOB).active, 100 * MUR);
    }
}
