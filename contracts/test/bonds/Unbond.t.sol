// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IBonds} from "../../src/interfaces/IBonds.sol";
import {InsufficientStake, TooEarly, ZeroAmount} from "../../src/interfaces/Errors.sol";
import {ReentrantToken} from "../support/HostileTokens.sol";
import {Wallet} from "../support/Wallet.sol";
import {World} from "../support/World.sol";

/// @notice unbond, rebond and withdraw: the way out and back.
contract UnbondTest is World {
    address internal someone = address(0x5E);

    function setUp() public override {
        super.setUp();
        bonds.deposit(someone, 100);
        vm.startPrank(someone);
    }

    function testFuzz_stake_leaves_after_the_delay_and_never_before(uint256 wait) public {
        wait = bound(wait, 0, 3 * uint256(DELAY));
        bonds.unbond(60);
        vm.warp(block.timestamp + wait);
        if (wait < DELAY) {
            expectRefusal(TooEarly.selector, START + 6 + DELAY);
            bonds.withdraw();
        } else {
            assertEq(bonds.withdraw(), 60);
            assertEq(token.balanceOf(someone), 60);
            assertEq(bonds.accounts(someone).leaving, 0);
            assertEq(bonds.accounts(someone).active, 40);
        }
    }

    function test_the_delay_is_over_to_the_second() public {
        bonds.unbond(60);
        pass(DELAY - 1);
        expectRefusal(TooEarly.selector, block.timestamp + 1);
        bonds.withdraw();
        pass(1);
        assertEq(bonds.withdraw(), 60);
    }

    function test_withdraw_takes_it_off_the_total_once() public {
        uint128 total = bonds.total();
        bonds.unbond(60);
        assertEq(bonds.total(), total);
        pass(DELAY);
        bonds.withdraw();
        assertEq(bonds.total(), total - 60);
        expectRefusal(ZeroAmount.selector);
        bonds.withdraw();
    }

    function test_a_second_unbonding_restarts_the_clock() public {
        bonds.unbond(30);
        pass(DELAY - 1);
        bonds.unbond(30);
        pass(1);
        expectRefusal(TooEarly.selector, block.timestamp + DELAY - 1);
        bonds.withdraw();
        pass(DELAY - 1);
        assertEq(bonds.withdraw(), 60);
    }

    function test_more_than_is_free_cannot_leave() public {
        expectRefusal(InsufficientStake.selector, 100, 101);
        bonds.unbond(101);
    }

    function test_locked_stake_cannot_leave() public {
        vm.stopPrank();
        vm.prank(operators[0]);
        expectRefusal(InsufficientStake.selector, STAKE - NODE_STAKE, STAKE);
        bonds.unbond(STAKE);
        vm.prank(operators[0]);
        bonds.unbond(STAKE - NODE_STAKE);
    }

    function test_leaving_stake_backs_nothing() public {
        vm.stopPrank();
        vm.prank(operators[0]);
        bonds.unbond(STAKE - NODE_STAKE);
        uint256 other = open(policy());
        Consent memory c = consentOf(other, 0);
        bytes memory signature = signConsent(c, keys[0]);
        vm.prank(operators[0]);
        expectRefusal(InsufficientStake.selector, 0, NODE_STAKE);
        runs.join(other, c.node, c.peer, c.hardware, c.deadline, signature, "");
    }

    function test_rebond_takes_it_back() public {
        bonds.unbond(60);
        vm.expectEmit(address(bonds));
        emit IBonds.Rebonded(someone, 20);
        bonds.rebond(20);
        assertEq(bonds.accounts(someone).active, 60);
        assertEq(bonds.accounts(someone).leaving, 40);
        expectRefusal(InsufficientStake.selector, 40, 41);
        bonds.rebond(41);
    }

    function test_nothing_is_refused() public {
        expectRefusal(ZeroAmount.selector);
        bonds.unbond(0);
        expectRefusal(ZeroAmount.selector);
        bonds.rebond(0);
        expectRefusal(ZeroAmount.selector);
        bonds.withdraw();
    }

    function test_reentering_withdraw_pays_nothing_twice() public {
        vm.stopPrank();
        ReentrantToken re = new ReentrantToken(SUPPLY);
        deployOver(IERC20(address(re)));
        Wallet thief = new Wallet();
        bonds.deposit(address(thief), 100);
        bonds.deposit(STRANGER, 100);
        thief.act(address(bonds), abi.encodeCall(bonds.unbond, (100)));
        pass(DELAY);
        bytes memory again = abi.encodeCall(bonds.withdraw, ());
        re.arm(address(thief), abi.encodeCall(thief.act, (address(bonds), again)));
        expectRefusal(ZeroAmount.selector);
        thief.act(address(bonds), again);
    }
}
