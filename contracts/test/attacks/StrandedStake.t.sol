// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {BlockingToken} from "../support/HostileTokens.sol";
import {World} from "../support/World.sol";

/// @notice A slash strands stake that was free to go; or a receiver that the token blocks stalls a verdict.
contract StrandedStakeTest is World {
    function test_stake_on_its_way_out_goes_out_on_time() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        vm.prank(operators[0]);
        bonds.unbond(STAKE - NODE_STAKE);
        uint64 readyAt = bonds.accounts(operators[0]).readyAt;
        uint256 number = accuse(0, 1, ref);
        pass(APPEAL);
        settle(0, number);
        assertEq(bonds.accounts(operators[0]).leaving, STAKE - NODE_STAKE);
        assertEq(bonds.accounts(operators[0]).readyAt, readyAt);
        vm.warp(readyAt);
        vm.prank(operators[0]);
        assertEq(bonds.withdraw(), STAKE - NODE_STAKE);
    }

    function test_matured_stake_can_be_had_after_any_slash() public {
        IRuns.SubmissionRef memory ref = submit(0, 1);
        vm.prank(operators[0]);
        bonds.unbond(STAKE - NODE_STAKE);
        pass(WINDOW - 1);
        uint256 number = accuse(0, 1, ref);
        pass(DELAY); // matured before the verdict
        settle(0, number);
        vm.prank(operators[0]);
        assertEq(bonds.withdraw(), STAKE - NODE_STAKE);
        pass(SPAN);
        runs.release(run, nodes[0]);
        vm.startPrank(operators[0]);
        bonds.unbond(NODE_STAKE - PENALTY);
        pass(DELAY);
        assertEq(bonds.withdraw(), NODE_STAKE - PENALTY);
        assertEq(bonds.accounts(operators[0]).active, 0);
    }

    function test_a_blocked_finder_stalls_no_verdict_and_no_other_exit() public {
        BlockingToken blocking = new BlockingToken(SUPPLY);
        deployOver(IERC20(address(blocking)));
        for (uint256 i; i < 5; ++i) {
            bonds.deposit(operators[i % 3], STAKE);
            bonds.deposit(validators[i], STAKE);
        }
        switchTo(policy());
        uint256 number = accuse(0, 1, submit(0, 1));
        blocking.blockAccount(validators[0]);
        pass(APPEAL);
        settle(0, number);
        assertGt(bonds.accounts(validators[0]).active, STAKE);
        vm.startPrank(operators[2]);
        bonds.unbond(1);
        pass(DELAY);
        assertEq(bonds.withdraw(), 1);
    }
}
