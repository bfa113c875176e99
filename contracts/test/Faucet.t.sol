// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {TooEarly, ZeroAddress, ZeroAmount} from "../src/interfaces/Errors.sol";
import {IFaucet} from "../src/interfaces/IFaucet.sol";
import {Faucet} from "../src/Faucet.sol";
import {Token} from "../src/Token.sol";
import {Test} from "./support/Test.sol";

/// @notice Faucet: drip.
contract FaucetTest is Test {
    uint256 internal constant AMOUNT = 500 ether;
    uint256 internal constant MOST = 1_600 ether; // three accounts, and less than a fourth
    uint256 internal constant PERIOD = 1 days;
    uint256 internal constant START = 20_000 * PERIOD + 3 hours;

    Token internal token;
    Faucet internal faucet;

    function setUp() public {
        vm.warp(START);
        token = new Token(10_000 ether);
        faucet = new Faucet(token, AMOUNT, MOST, PERIOD);
        require(token.transfer(address(faucet), 10_000 ether));
    }

    function test_anybody_has_an_account_given_its_tokens() public {
        vm.prank(address(0xBEEF));
        vm.expectEmit(address(faucet));
        emit IFaucet.Dripped(address(1), AMOUNT);
        faucet.drip(address(1));
        assertEq(token.balanceOf(address(1)), AMOUNT);
        assertEq(token.balanceOf(address(0xBEEF)), 0);
        assertEq(faucet.given(), AMOUNT);
    }

    function test_an_account_waits_a_whole_period(uint256 wait) public {
        wait = bound(wait, 0, 3 * PERIOD);
        faucet.drip(address(1));
        assertEq(faucet.next(address(1)), START + PERIOD);
        vm.warp(START + wait);
        if (wait < PERIOD) expectRefusal(TooEarly.selector, START + PERIOD);
        faucet.drip(address(1));
        assertEq(token.balanceOf(address(1)), wait < PERIOD ? AMOUNT : 2 * AMOUNT);
    }

    function test_many_accounts_get_no_more_than_a_period_gives() public {
        for (uint160 i = 1; i <= 3; ++i) {
            faucet.drip(address(i));
        }
        uint256 nextPeriod = (START / PERIOD + 1) * PERIOD;
        expectRefusal(IFaucet.Exhausted.selector, nextPeriod);
        faucet.drip(address(4));
        vm.warp(nextPeriod - 1);
        expectRefusal(IFaucet.Exhausted.selector, nextPeriod);
        faucet.drip(address(4));
        vm.warp(nextPeriod);
        assertEq(faucet.given(), 0);
        faucet.drip(address(4));
        assertEq(faucet.given(), AMOUNT);
    }

    function test_whoever_asks_how_often_no_period_gives_more(uint8[40] calldata accounts, uint32[40] calldata pauses)
        public
    {
        uint256 period = START / PERIOD;
        uint256 before = token.balanceOf(address(faucet));
        uint256 time = START;
        for (uint256 i; i < accounts.length; ++i) {
            time += pauses[i] % (PERIOD / 4);
            vm.warp(time);
            if (time / PERIOD != period) {
                (period, before) = (time / PERIOD, token.balanceOf(address(faucet)));
            }
            try faucet.drip(address(uint160(accounts[i]) + 1)) {} catch {}
            assertLe(before - token.balanceOf(address(faucet)), MOST);
        }
    }

    function test_an_empty_faucet_gives_nothing_and_counts_nothing() public {
        Faucet empty = new Faucet(token, AMOUNT, MOST, PERIOD);
        vm.expectRevert();
        empty.drip(address(1));
        assertEq(empty.next(address(1)), 0);
        assertEq(empty.given(), 0);
    }

    function test_what_could_give_nothing_is_not_made() public {
        expectRefusal(ZeroAddress.selector);
        new Faucet(IERC20(address(0)), AMOUNT, MOST, PERIOD);
        expectRefusal(ZeroAmount.selector);
        new Faucet(token, 0, MOST, PERIOD);
        expectRefusal(ZeroAmount.selector);
        new Faucet(token, AMOUNT, AMOUNT - 1, PERIOD);
        expectRefusal(ZeroAmount.selector);
        new Faucet(token, AMOUNT, MOST, 0);
    }
}
