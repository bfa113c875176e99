// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice An accomplice is the first to challenge the seat's junk, and pays the fee back.
contract FriendlyFeeTest is World {
    function test_most_of_a_fee_is_nobodys() public {
        IRuns.SubmissionRef[] memory junk = submitMany(0, 3, 100);
        challenge(0, junk);
        pass(APPEAL);
        settle(0, 1);
        uint256 share = findersOf(3 * FEE);
        assertEq(bonds.accounts(operators[0]).active, STAKE - 3 * FEE);
        assertEq(bonds.accounts(validators[0]).active, STAKE + share);
        assertEq(bonds.accounts(SINK).active, 3 * FEE - share);
    }

    function test_nor_where_verdicts_are_instant() public {
        switchTo(instantPolicy());
        uint256 before = bonds.accounts(validators[0]).active;
        challenge(0, submit(0, 100));
        assertEq(bonds.accounts(validators[0]).active, before + findersOf(FEE));
    }
}
