// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, InsufficientStake, TooEarly, TooLate, WrongState} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice appeal, vote, and settle after a vote.
contract AppealTest is World {
    IRuns.SubmissionRef internal ref;
    uint256 internal soft;

    function setUp() public override {
        super.setUp();
        ref = submit(0, 100);
        soft = challenge(0, ref);
    }

    function test_node_or_operator_appeals_with_the_seats_own_lock() public {
        uint256 snapshot = vm.snapshotState();
        vm.prank(nodes[0]);
        vm.expectEmit(address(court));
        emit ICourt.Appealed(run, nodes[0], soft, nodes[0]);
        court.appeal(run, nodes[0], soft);
        vm.revertToState(snapshot);
        IRuns.Seat memory before = runs.seats(run, nodes[0]);
        appeal(0, soft);
        ICourt.Case memory c = court.cases(run, nodes[0], soft);
        assertStage(0, soft, ICourt.Stage.Appealed);
        assertEq(c.deadline, block.timestamp + VOTE);
        assertEq(c.appellant, address(0));
        assertEq(keccak256(abi.encode(runs.seats(run, nodes[0]))), keccak256(abi.encode(before)));
        assertState(ref, ICourt.State.Appealed);
    }

    function test_appeals_have_a_deadline() public {
        pass(APPEAL - 1);
        uint256 snapshot = vm.snapshotState();
        appeal(0, soft);
        vm.revertToState(snapshot);
        pass(1);
        vm.prank(operators[0]);
        expectRefusal(TooLate.selector, block.timestamp);
        court.appeal(run, nodes[0], soft);
    }

    function test_a_case_is_appealed_once_and_only_while_open() public {
        vm.prank(operators[0]);
        expectRefusal(WrongState.selector);
        court.appeal(run, nodes[0], soft + 1);
        appeal(0, soft);
        vm.prank(operators[0]);
        expectRefusal(WrongState.selector);
        court.appeal(run, nodes[0], soft);
    }

    function test_strangers_and_other_operators_do_not_appeal() public {
        vm.prank(STRANGER);
        expectRefusal(IBench.NotOnBench.selector, STRANGER);
        court.appeal(run, nodes[0], soft);
        vm.prank(operators[1]);
        expectRefusal(IBench.NotOnBench.selector, operators[1]);
        court.appeal(run, nodes[0], soft);
    }

    function test_a_validator_may_stand_by_the_submission_with_its_own_bond() public {
        vm.prank(validators[0]);
        expectRefusal(Denied.selector, validators[0]); // not the challenger
        court.appeal(run, nodes[0], soft);
        vm.prank(validators[1]);
        court.appeal(run, nodes[0], soft);
        assertEq(court.cases(run, nodes[0], soft).appellant, validators[1]);
        assertEq(bench.validators(run, validators[1]).atRisk, BOND);
        vm.prank(validators[1]);
        expectRefusal(Denied.selector, validators[1]); // a party, no juror
        court.vote(run, nodes[0], soft, 0, 0, EVIDENCE);
        uint256 snapshot = vm.snapshotState();
        vote(2, 0, soft, false);
        vote(3, 0, soft, false);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND);
        assertEq(bonds.accounts(validators[1]).active, STAKE + BOND / 2); // who appealed has won
        assertEq(bonds.accounts(operators[0]).active, STAKE);
        assertEq(bench.validators(run, validators[1]).atRisk, 0);
        vm.revertToState(snapshot);
        vote(2, 0, soft, true);
        vote(3, 0, soft, true);
        uint256 share = uint256(BOND) * FINDER_BPS / 10_000;
        assertEq(bonds.accounts(validators[1]).active, STAKE - BOND);
        assertEq(bench.validators(run, validators[1]).locked, VALIDATOR_STAKE - BOND);
        assertEq(bonds.accounts(validators[0]).active, STAKE + share + FEE);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - FEE); // the seat did not appeal, and loses no bond
    }

    function test_a_validator_without_room_for_a_bond_cannot() public {
        for (uint256 i; i < VALIDATOR_STAKE / BOND; ++i) {
            challenge(1, submit(1, 1));
        }
        vm.prank(validators[1]);
        expectRefusal(InsufficientStake.selector, VALIDATOR_STAKE, VALIDATOR_STAKE + BOND);
        court.appeal(run, nodes[0], soft);
    }

    function test_a_co_signer_is_no_appellant() public {
        uint256 hard = accuse(2, 3, submit(0, 1));
        vm.prank(validators[3]);
        expectRefusal(Denied.selector, validators[3]);
        court.appeal(run, nodes[0], hard);
        appeal(0, hard);
        vm.prank(validators[3]);
        expectRefusal(Denied.selector, validators[3]);
        court.vote(run, nodes[0], hard, 1, 1, EVIDENCE);
    }

    function test_a_quorum_of_one_side_decides_at_once() public {
        appeal(0, soft);
        vote(1, 0, soft, true);
        vote(2, 0, soft, false);
        assertStage(0, soft, ICourt.Stage.Appealed);
        vm.prank(validators[3]);
        vm.expectEmit(address(court));
        emit ICourt.Voted(run, nodes[0], soft, validators[3], 0, 0, EVIDENCE);
        vm.expectEmit(address(court));
        emit ICourt.Settled(run, nodes[0], soft, ICourt.Stage.Cleared, 0, 1, false, 0, 0);
        court.vote(run, nodes[0], soft, 0, 0, EVIDENCE);
        vm.prank(validators[4]);
        expectRefusal(WrongState.selector);
        court.vote(run, nodes[0], soft, 0, 0, EVIDENCE);
    }

    function test_winning_pays_half_the_challengers_bond_and_returns_the_units() public {
        appeal(0, soft);
        vote(1, 0, soft, false);
        vote(2, 0, soft, false);
        assertState(ref, ICourt.State.Cleared);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND);
        assertEq(bench.validators(run, validators[0]).locked, VALIDATOR_STAKE - BOND);
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
        assertEq(bonds.accounts(operators[0]).active, STAKE + BOND / 2);
        assertEq(bonds.accounts(SINK).active, BOND - BOND / 2);
        assertEq(runs.seats(run, nodes[0]).held, 0);
        assertEq(runs.seats(run, nodes[0]).strikes, 0);
        pass(WINDOW - 1);
        assertEq(runs.claim(run, nodes[0]), 0); // their window is still theirs
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 100 * uint256(REWARD));
    }

    function test_losing_costs_the_seat_a_bond_and_the_submission() public {
        appeal(0, soft);
        vote(1, 0, soft, true);
        vote(2, 0, soft, true);
        assertState(ref, ICourt.State.Revoked);
        uint256 share = uint256(BOND) * FINDER_BPS / 10_000;
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - BOND - FEE);
        assertEq(bonds.accounts(operators[0]).active, STAKE - BOND - FEE);
        assertEq(bonds.accounts(validators[0]).active, STAKE + share + FEE);
        assertEq(bonds.accounts(SINK).active, BOND - share);
        assertEq(runs.seats(run, nodes[0]).strikes, 1);
        assertEq(runs.funds(run).reserved, 0);
    }

    function test_without_a_quorum_nobody_loses_stake_and_the_submission_earns_nothing() public {
        appeal(0, soft);
        vote(1, 0, soft, true);
        vote(2, 0, soft, false);
        pass(VOTE - 1);
        expectRefusal(TooEarly.selector, block.timestamp + 1);
        settle(0, soft);
        pass(1);
        vm.prank(validators[3]);
        expectRefusal(TooLate.selector, block.timestamp);
        court.vote(run, nodes[0], soft, 0, 0, EVIDENCE);
        vm.expectEmit(address(court));
        emit ICourt.Settled(run, nodes[0], soft, ICourt.Stage.Undecided, 0, 0, false, 0, 0);
        settle(0, soft);
        nothingLost();
        assertState(ref, ICourt.State.Revoked);
        assertEq(runs.seats(run, nodes[0]).strikes, 0);
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
    }

    function test_without_a_quorum_a_hard_case_is_a_soft_one() public {
        IRuns.SubmissionRef memory accused = submit(0, 30);
        submit(0, 7);
        uint256 hard = accuse(1, 2, accused);
        appeal(0, hard);
        pass(VOTE);
        settle(0, hard);
        nothingLost();
        assertRole(0, IRuns.Role.Active);
        assertFalse(runs.seats(run, nodes[0]).swept);
        assertEq(runs.seats(run, nodes[0]).openHard, 0);
        assertState(accused, ICourt.State.Revoked);
        assertEq(runs.funds(run).reserved, 107 * uint256(REWARD));
        assertEq(bench.validators(run, validators[1]).atRisk, 0);
        assertEq(bench.validators(run, validators[2]).atRisk, 0);
        publish(run);
        submit(0, 1);
    }

    function test_a_lost_hard_appeal_costs_bond_and_penalty() public {
        uint256 hard = accuse(1, 2, submit(0, 30));
        appeal(0, hard);
        vote(3, 0, hard, true);
        vote(4, 0, hard, true);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - BOND - PENALTY);
        assertTrue(runs.seats(run, nodes[0]).swept);
    }

    function test_an_acquittal_costs_both_who_signed() public {
        uint256 hard = accuse(1, 2, submit(0, 30));
        appeal(0, hard);
        vote(3, 0, hard, false);
        vote(4, 0, hard, false);
        assertEq(bonds.accounts(validators[1]).active, STAKE - BOND);
        assertEq(bonds.accounts(validators[2]).active, STAKE - BOND);
        assertEq(bonds.accounts(operators[0]).active, STAKE + 2 * (BOND / 2));
        assertEq(runs.seats(run, nodes[0]).openHard, 0);
        assertEq(bench.validators(run, validators[1]).atRisk, 0);
        assertEq(bench.validators(run, validators[2]).atRisk, 0);
    }

    function test_jurors_vote_once_on_appealed_cases_and_only_if_of_the_bench() public {
        vm.prank(validators[1]);
        expectRefusal(WrongState.selector);
        court.vote(run, nodes[0], soft, 1, 1, EVIDENCE);
        appeal(0, soft);
        vote(1, 0, soft, true);
        assertTrue(court.voted(run, nodes[0], soft, validators[1]));
        vm.prank(validators[1]);
        expectRefusal(Denied.selector, validators[1]);
        court.vote(run, nodes[0], soft, 1, 1, EVIDENCE);
        vm.prank(validators[0]);
        expectRefusal(Denied.selector, validators[0]);
        court.vote(run, nodes[0], soft, 1, 1, EVIDENCE);
        vm.prank(STRANGER);
        expectRefusal(IBench.NotOnBench.selector, STRANGER);
        court.vote(run, nodes[0], soft, 1, 1, EVIDENCE);
    }

    function test_votes_of_one_case_do_not_count_in_another() public {
        uint256 second = challenge(0, submit(0, 1));
        uint256 elsewhere = challenge(0, submit(1, 1));
        appeal(0, soft);
        appeal(0, second);
        appeal(1, elsewhere);
        vote(1, 0, soft, true);
        vote(1, 0, second, true);
        vote(1, 1, elsewhere, true);
        assertEq(court.ballots(run, nodes[0], soft).length, 1);
        assertEq(court.ballots(run, nodes[0], second).length, 1);
        assertEq(court.ballots(run, nodes[1], elsewhere).length, 1);
    }

    function test_lost_appeals_leave_the_penalty_whole() public {
        IRuns.SubmissionRef memory cheat = submit(0, 1);
        for (uint256 i; i < 4; ++i) {
            uint256 number = challenge(1, submit(0, 1));
            appeal(0, number);
            vote(2, 0, number, true);
            vote(3, 0, number, true);
        }
        assertEq(runs.seats(run, nodes[0]).locked, PENALTY); // two bonds, or fees, and no more
        uint256 hard = accuse(2, 3, cheat);
        pass(APPEAL);
        settle(0, hard);
        assertEq(runs.seats(run, nodes[0]).locked, 0);
        assertEq(bonds.accounts(operators[0]).active, STAKE - NODE_STAKE);
        assertEq(bonds.accounts(operators[0]).locked, 0);
    }

    function nothingLost() internal view {
        for (uint256 i; i < 3; ++i) {
            assertEq(bonds.accounts(operators[i]).active, STAKE);
        }
        for (uint256 i; i < 5; ++i) {
            assertEq(bonds.accounts(validators[i]).active, STAKE);
        }
        assertEq(bonds.accounts(SINK).active, 0);
    }
}
