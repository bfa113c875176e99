// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice The jury stays silent so that an honest challenger is slashed, or an honest node.
contract SilentJuryTest is World {
    function test_silence_slashes_neither_side() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        submit(0, 7);
        uint256 hard = accuse(0, 1, ref);
        appeal(0, hard);
        vote(2, 0, hard, true); // one honest juror is no majority of three
        pass(VOTE);
        settle(0, hard);
        uint256 pay = JURY_FEE / 3;
        assertEq(bonds.accounts(validators[0]).active, STAKE - pay); // the fee, less what the silent two pay
        assertEq(bonds.accounts(validators[1]).active, STAKE);
        assertEq(bonds.accounts(validators[2]).active, STAKE + pay);
        assertEq(bonds.accounts(validators[3]).active, STAKE - pay);
        assertEq(bonds.accounts(validators[4]).active, STAKE - pay);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE);
        pass(APPEAL);
        settle(0, hard); // nobody took it up
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 107 * uint256(REWARD));
    }
}
