// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {InsufficientStake} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice Twenty seats submit on one stake, by leaving each and joining the next.
contract TwentySeatsOneStakeTest is World {
    function test_the_stake_stays_with_the_submission_it_backed() public {
        address operator = address(0x5EA7);
        bonds.deposit(operator, NODE_STAKE);
        operators[1] = operator;
        (keys[1], nodes[1]) = (0xF00, vm.addr(0xF00));
        seat(run, 1);
        publish(run);
        submit(1, 1);
        vm.prank(operator);
        runs.leave(run, nodes[1]);
        for (uint256 i = 1; i < 20; ++i) {
            (keys[1], nodes[1]) = (0xF00 + i, vm.addr(0xF00 + i));
            Consent memory c = consentOf(run, 1);
            bytes memory signature = signConsent(c, keys[1]);
            vm.prank(operator);
            expectRefusal(InsufficientStake.selector, 0, NODE_STAKE);
            runs.join(run, c.node, c.peer, c.hardware, c.deadline, signature, "");
        }
        vm.prank(operator);
        expectRefusal(InsufficientStake.selector, 0, NODE_STAKE);
        bonds.unbond(NODE_STAKE);
    }
}
