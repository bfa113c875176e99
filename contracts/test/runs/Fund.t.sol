// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, NoSuchRun, TooEarly, WrongAmount, ZeroAmount} from "../../src/interfaces/Errors.sol";
import {FeeToken, ReentrantToken} from "../support/HostileTokens.sol";
import {Wallet} from "../support/Wallet.sol";
import {World} from "../support/World.sol";

/// @notice fund, defund and collect: the budget in and out.
contract FundTest is World {
    function testFuzz_anyone_funds_a_run(uint128 amount) public {
        amount = uint128(bound(amount, 1, SUPPLY / 2));
        token.transfer(STRANGER, amount);
        vm.startPrank(STRANGER);
        token.approve(address(runs), amount);
        vm.expectEmit(address(runs));
        emit IRuns.Funded(run, int256(uint256(amount)));
        runs.fund(run, amount);
        assertEq(runs.funds(run).free, BUDGET + amount);
        assertEq(token.balanceOf(address(runs)), BUDGET + amount);
    }

    function test_fund_refuses_nothing_and_nowhere() public {
        expectRefusal(ZeroAmount.selector);
        runs.fund(run, 0);
        expectRefusal(NoSuchRun.selector, 0);
        runs.fund(0, 1);
        expectRefusal(NoSuchRun.selector, 2);
        runs.fund(2, 1);
    }

    function test_fund_refuses_a_token_that_takes_a_fee() public {
        deployOver(IERC20(address(new FeeToken(SUPPLY))));
        policies.create(policy(), SPEC);
        expectRefusal(WrongAmount.selector, 99, 100);
        runs.fund(1, 100);
    }

    function test_a_budget_fits_128_bits_with_what_is_reserved() public {
        deployOver(IERC20(address(new ReentrantToken(type(uint256).max))));
        for (uint256 i; i < 5; ++i) {
            bonds.deposit(operators[i % 3], STAKE);
            bonds.deposit(validators[i], STAKE);
        }
        switchTo(policy());
        submit(0, 100);
        uint128 reserved = runs.funds(run).reserved;
        assertGt(reserved, 0);
        uint128 room = type(uint128).max - runs.funds(run).free - reserved;
        vm.expectRevert(); // else giving `reserved` back could overflow, and no case could be settled
        runs.fund(run, room + 1);
        runs.fund(run, room);
    }

    function test_defund_leaves_after_the_notice() public {
        vm.startPrank(OWNER);
        vm.expectEmit(address(runs));
        emit IRuns.Defunding(run, 100, block.timestamp + NOTICE);
        runs.defund(run, 100);
        pass(NOTICE - 1);
        expectRefusal(TooEarly.selector, block.timestamp + 1);
        runs.collect(run);
        pass(1);
        vm.expectEmit(address(runs));
        emit IRuns.Funded(run, -100);
        assertEq(runs.collect(run), 100);
        assertEq(token.balanceOf(OWNER), 100);
        assertEq(runs.funds(run).free, BUDGET - 100);
        expectRefusal(TooEarly.selector, 0); // nothing is announced any more
        runs.collect(run);
    }

    function test_collect_pays_what_is_free_and_keeps_the_rest_announced() public {
        IRuns.SubmissionRef memory ref = submit(0, 1_000);
        vm.prank(OWNER);
        runs.defund(run, type(uint128).max);
        pass(NOTICE);
        vm.prank(OWNER);
        uint256 paid = runs.collect(run);
        assertEq(paid, BUDGET - 1_000 * uint256(REWARD));
        assertEq(runs.funds(run).reserved, 1_000 * uint256(REWARD)); // what is owed stays
        challenge(0, ref);
        pass(APPEAL);
        settle(0, 1);
        vm.prank(OWNER);
        assertEq(runs.collect(run), 1_000 * uint256(REWARD)); // what a verdict gave back leaves too
    }

    function test_only_the_owner_takes_out() public {
        expectRefusal(Denied.selector, address(this));
        runs.defund(run, 1);
        expectRefusal(Denied.selector, address(this));
        runs.collect(run);
    }

    function test_announced_money_backs_work_until_the_notice_has_passed_and_none_after() public {
        vm.prank(OWNER);
        runs.defund(run, BUDGET - 10 * uint128(REWARD));
        pass(NOTICE - 1);
        submit(0, 11);
        pass(1);
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.Unfunded.selector, 0, REWARD);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
    }

    function test_what_stays_backs_work_after_the_notice() public {
        vm.prank(OWNER);
        runs.defund(run, BUDGET - 10 * uint128(REWARD));
        pass(NOTICE);
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[0]);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.Unfunded.selector, 10 * uint256(REWARD), 11 * uint256(REWARD));
        runs.submit(run, ref.root, ref.step, ref.sequence, 11, beacon);
        submit(0, 10);
    }

    function test_defund_can_be_cancelled() public {
        vm.startPrank(OWNER);
        runs.defund(run, BUDGET);
        runs.defund(run, 0);
        pass(NOTICE);
        expectRefusal(TooEarly.selector, 0);
        runs.collect(run);
        vm.stopPrank();
        submit(0, 100);
    }

    function test_a_second_announcement_waits_its_own_notice() public {
        vm.startPrank(OWNER);
        runs.defund(run, 1);
        pass(NOTICE);
        runs.defund(run, BUDGET);
        expectRefusal(TooEarly.selector, block.timestamp + NOTICE);
        runs.collect(run);
    }

    function test_reentering_collect_pays_nothing_twice() public {
        ReentrantToken re = new ReentrantToken(SUPPLY);
        deployOver(IERC20(address(re)));
        Wallet owner = new Wallet();
        IPolicies.Policy memory p = policy();
        p.owner = address(owner);
        policies.create(p, SPEC);
        runs.fund(1, 1_000);
        policies.create(policy(), SPEC);
        runs.fund(2, 1_000);
        owner.act(address(runs), abi.encodeCall(runs.defund, (1, 1_000)));
        pass(NOTICE);
        bytes memory collect = abi.encodeCall(runs.collect, (1));
        re.arm(address(owner), abi.encodeCall(owner.act, (address(runs), collect)));
        expectRefusal(TooEarly.selector, 0);
        owner.act(address(runs), collect);
    }
}
