// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A node lets itself be convicted of an honest submission, so that the validator that accepted it is impeached.
contract FramedValidatorTest is World {
    function test_the_framed_validator_is_heard_and_wins() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        bytes32 submission = court.submissionId(run, ref);
        ICourt.Receipt memory accepted =
            ICourt.Receipt(validators[2], 1, EVIDENCE, signVerdict(run, submission, 1, 1, validatorKeys[2]));
        uint256 number = accuse(0, 1, ref); // the operator will be silent
        vm.prank(validators[2]);
        court.appeal(run, nodes[0], number);
        poll(0, number, false);
        vm.expectRevert();
        court.impeach(run, ref, number, accepted);
        assertEq(bonds.accounts(validators[2]).active, STAKE + JURY_FEE / 2);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND);
        assertEq(bonds.accounts(validators[1]).active, STAKE - BOND);
    }

    function test_a_charge_covers_only_what_both_accusers_name() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        bytes32 submission = court.submissionId(run, ref);
        // the honest second names sample 7; the framer would have sample 0 convicted along with it
        ICourt.Receipt memory second =
            ICourt.Receipt(validators[1], 1 << 7, EVIDENCE, signVerdict(run, submission, 3, 1 << 7, validatorKeys[1]));
        vm.prank(validators[0]);
        uint256 number = court.accuse(run, ref, type(uint256).max, EVIDENCE, second);
        pass(APPEAL);
        settle(0, number);
        ICourt.Receipt memory accepted =
            ICourt.Receipt(validators[2], 1, EVIDENCE, signVerdict(run, submission, 1, 1, validatorKeys[2]));
        expectRefusal(ICourt.NoCommonSample.selector);
        court.impeach(run, ref, number, accepted);
    }
}
