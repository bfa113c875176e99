// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice One validator of a run with instant verdicts lives off the fees of honest nodes.
contract FarmedFeesTest is World {
    function test_a_window_has_only_so_many_strikes() public {
        switchTo(instantPolicy());
        uint256 before = bonds.accounts(validators[0]).active;
        IRuns.SubmissionRef[] memory submissions = submitMany(0, 100, 1);
        for (uint256 i; i < 100; ++i) {
            challenge(0, submissions[i]);
        }
        assertEq(bonds.accounts(validators[0]).active, before + findersOf(STRIKES * FEE));
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - uint256(STRIKES) * FEE);
    }

    function test_splitting_a_case_pays_no_more_than_one() public {
        IRuns.SubmissionRef[] memory submissions = submitMany(0, 3, 1);
        uint256 snapshot = vm.snapshotState();
        challenge(0, submissions);
        pass(APPEAL);
        settle(0, 1);
        uint256 together = bonds.accounts(validators[0]).active;
        vm.revertToState(snapshot);
        for (uint256 i; i < 3; ++i) {
            challenge(0, submissions[i]);
        }
        pass(APPEAL);
        for (uint256 i; i < 3; ++i) {
            settle(0, i + 1);
        }
        assertEq(bonds.accounts(validators[0]).active, together);
    }
}
