// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IBonds} from "../../src/interfaces/IBonds.sol";
import {WrongAmount, ZeroAddress, ZeroAmount} from "../../src/interfaces/Errors.sol";
import {FalseToken, FeeToken, ReentrantToken} from "../support/HostileTokens.sol";
import {Wallet} from "../support/Wallet.sol";
import {World} from "../support/World.sol";

contract DepositTest is World {
    function testFuzz_deposit_is_active_stake(uint128 amount) public {
        amount = uint128(bound(amount, 1, SUPPLY / 2));
        uint128 total = bonds.total();
        uint256 held = token.balanceOf(address(bonds));
        vm.expectEmit(address(bonds));
        emit IBonds.Deposited(STRANGER, amount);
        bonds.deposit(STRANGER, amount);
        assertEq(bonds.accounts(STRANGER).active, amount);
        assertEq(bonds.accounts(STRANGER).locked, 0);
        assertEq(bonds.total(), total + amount);
        assertEq(token.balanceOf(address(bonds)), held + amount);
    }

    function test_deposit_of_nothing_is_refused() public {
        expectRefusal(ZeroAmount.selector);
        bonds.deposit(STRANGER, 0);
    }

    function test_token_that_takes_a_fee_is_refused_clearly() public {
        FeeToken fee = new FeeToken(SUPPLY);
        deployOver(IERC20(address(fee)));
        expectRefusal(WrongAmount.selector, 99, 100);
        bonds.deposit(STRANGER, 100);
    }

    function test_token_that_answers_false_is_refused() public {
        FalseToken no = new FalseToken();
        deployOver(IERC20(address(no)));
        expectRefusal(SafeERC20.SafeERC20FailedOperation.selector, address(no));
        bonds.deposit(STRANGER, 100);
    }

    function test_deposit_nested_in_a_transfer_counts_nothing_twice() public {
        ReentrantToken re = new ReentrantToken(SUPPLY);
        deployOver(IERC20(address(re)));
        Wallet thief = new Wallet();
        re.transfer(address(thief), 100);
        thief.act(address(re), abi.encodeCall(re.approve, (address(bonds), 100)));
        bytes memory nested = abi.encodeCall(bonds.deposit, (address(thief), 50));
        re.arm(address(thief), abi.encodeCall(thief.act, (address(bonds), nested)));
        expectRefusal(WrongAmount.selector, 150, 100);
        bonds.deposit(STRANGER, 100);
    }

    function test_deposits_beyond_128_bits_are_refused() public {
        ReentrantToken vast = new ReentrantToken(type(uint256).max);
        deployOver(IERC20(address(vast)));
        bonds.deposit(STRANGER, type(uint128).max);
        vm.expectRevert(); // arithmetic overflow: else a slash could overflow the account it credits
        bonds.deposit(OWNER, 1);
    }

    function test_a_sink_is_needed() public {
        expectRefusal(ZeroAddress.selector);
        create("Bonds", abi.encode(token, DELAY, address(0), runs, court));
    }
}
