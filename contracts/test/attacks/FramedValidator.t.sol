// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
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

    /// @dev The work that it vouched for is false, but no cheating: the jury finds less than the accusers charged. The one that stood by it
    /// lost a bond for having been right about the charge.
    function test_the_framed_validator_loses_nothing_where_the_work_is_merely_false() public {
        uint256 number = accuse(0, 1, submit(0, 100));
        vm.prank(validators[2]);
        court.appeal(run, nodes[0], number);
        ballot(3, 0, number, 1, 0);
        ballot(4, 0, number, 1, 0);
        assertStage(0, number, ICourt.Stage.Upheld);
        assertEq(bonds.accounts(validators[2]).active, STAKE + JURY_FEE / 2); // paid like a juror
        assertEq(bench.validators(run, validators[2]).atRisk, 0);
        for (uint256 v; v < 2; ++v) {
            assertEq(bonds.accounts(validators[v]).active, STAKE - JURY_FEE); // and no share of the fee
            assertEq(bonds.accounts(validators[3 + v]).active, STAKE + JURY_FEE / 2);
        }
        assertEq(bonds.accounts(operators[0]).active, STAKE - FEE);
        assertEq(bonds.accounts(SINK).active, FEE + JURY_FEE / 2);
    }

    /// @dev The seat itself, charged with cheating, has to appeal, and was right to: it loses the submission and no bond.
    function test_the_seat_pays_no_jury_where_the_work_is_merely_false() public {
        uint256 number = accuse(0, 1, submit(0, 100));
        uint256 snapshot = vm.snapshotState();
        for (uint256 by; by < 2; ++by) {
            vm.prank(by == 0 ? operators[0] : nodes[0]);
            court.appeal(run, nodes[0], number);
            ballot(2, 0, number, 1, 0);
            ballot(3, 0, number, 1, 0);
            assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - FEE);
            assertEq(runs.seats(run, nodes[0]).spent, 0);
            assertEq(runs.seats(run, nodes[0]).strikes, 1);
            assertEq(bonds.accounts(validators[0]).active, STAKE - 3 * (JURY_FEE / 3));
            assertEq(bonds.accounts(validators[1]).active, STAKE - 3 * (JURY_FEE / 3));
            assertEq(bonds.accounts(validators[2]).active, STAKE + JURY_FEE / 3);
            assertEq(bonds.accounts(validators[3]).active, STAKE + JURY_FEE / 3);
            vm.revertToState(snapshot);
        }
    }

    function test_nor_where_the_jury_costs_nothing() public {
        IPolicies.Policy memory p = policy();
        p.juryFee = 1; // of two jurors none gets anything
        switchTo(p);
        uint256 number = accuse(0, 1, submit(0, 100));
        vm.prank(validators[2]);
        court.appeal(run, nodes[0], number);
        ballot(3, 0, number, 1, 0);
        ballot(4, 0, number, 1, 0);
        assertStage(0, number, ICourt.Stage.Upheld);
        assertEq(bonds.accounts(validators[2]).active, STAKE);
    }

    /// @dev Where the jury finds the charge right, whoever stood by the work pays for that.
    function test_who_stands_by_a_cheat_loses_its_bond() public {
        uint256 number = accuse(0, 1, submit(0, 100));
        vm.prank(validators[2]);
        court.appeal(run, nodes[0], number);
        poll(0, number, true);
        assertEq(bonds.accounts(validators[2]).active, STAKE - BOND);
        assertGt(bonds.accounts(validators[0]).active, STAKE);
        assertEq(bonds.accounts(validators[1]).active, STAKE);
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
