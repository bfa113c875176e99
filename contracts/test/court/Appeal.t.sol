// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, InsufficientStake, TooEarly, TooLate, TooLong, WrongState} from "../../src/interfaces/Errors.sol";
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
        assertEq(bonds.accounts(validators[1]).active, STAKE + JURY_FEE / 3); // who appealed is paid like a juror
        assertEq(bonds.accounts(operators[0]).active, STAKE + compensation(BOND, 3, 3)); // the seat was wronged
        assertEq(bench.validators(run, validators[1]).atRisk, 0);
        vm.revertToState(snapshot);
        poll(0, soft, true);
        uint256 share = (uint256(BOND) - 2 * (JURY_FEE / 3)) * FINDER_BPS / 10_000;
        assertEq(bonds.accounts(validators[1]).active, STAKE - BOND);
        assertEq(bench.validators(run, validators[1]).locked, VALIDATOR_STAKE - BOND);
        assertEq(bonds.accounts(validators[0]).active, STAKE + share + findersOf(FEE));
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

    function test_a_majority_of_the_bench_decides_at_once() public {
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
        assertEq(bonds.accounts(operators[0]).active, STAKE + compensation(BOND, 2, 4));
        assertEq(bonds.accounts(validators[1]).active, STAKE + JURY_FEE / 4);
        assertEq(bonds.accounts(SINK).active, compensation(BOND, 2, 4));
        assertEq(runs.seats(run, nodes[0]).held, 0);
        assertEq(runs.seats(run, nodes[0]).strikes, 0);
        pass(WINDOW - 1);
        assertEq(runs.claim(run, nodes[0]), 0); // their window is still theirs
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 100 * uint256(REWARD));
    }

    function test_losing_costs_the_seat_a_bond_and_the_submission() public {
        appeal(0, soft);
        poll(0, soft, true);
        assertState(ref, ICourt.State.Revoked);
        uint256 paid = 3 * (JURY_FEE / 4);
        uint256 share = (uint256(BOND) - paid) * FINDER_BPS / 10_000;
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - BOND - FEE);
        assertEq(bonds.accounts(operators[0]).active, STAKE - BOND - FEE);
        assertEq(bonds.accounts(validators[0]).active, STAKE + share + findersOf(FEE));
        assertEq(bonds.accounts(SINK).active, BOND - paid - share + FEE - findersOf(FEE));
        assertEq(runs.seats(run, nodes[0]).strikes, 1);
        assertEq(runs.funds(run).reserved, 0);
    }

    function test_without_a_majority_the_challenger_pays_the_jury_and_the_units_wait_and_return() public {
        appeal(0, soft);
        vote(1, 0, soft, true);
        vote(2, 0, soft, true);
        abstain(3, 0, soft); // and validator 4 keeps silent
        pass(VOTE - 1);
        expectRefusal(TooEarly.selector, block.timestamp + 1);
        settle(0, soft);
        pass(1);
        vm.prank(validators[4]);
        expectRefusal(TooLate.selector, block.timestamp);
        court.vote(run, nodes[0], soft, 0, 0, EVIDENCE);
        vm.expectEmit(address(bench));
        emit IBench.Silent(run, nodes[0], soft, validators[4], JURY_FEE / 4);
        vm.expectEmit(address(court));
        emit ICourt.Settled(run, nodes[0], soft, ICourt.Stage.Undecided, 0, 0, false, 0, 0);
        settle(0, soft);
        uint256 pay = JURY_FEE / 4;
        assertEq(bonds.accounts(validators[0]).active, STAKE - 3 * pay); // the jury's fee, less what the silent one paid
        assertEq(bonds.accounts(validators[1]).active, STAKE + pay);
        assertEq(bonds.accounts(validators[2]).active, STAKE + pay);
        assertEq(bonds.accounts(validators[3]).active, STAKE); // abstaining costs the pay
        assertEq(bonds.accounts(validators[4]).active, STAKE - pay);
        assertEq(bonds.accounts(operators[0]).active, STAKE + 2 * pay); // for having waited
        assertState(ref, ICourt.State.Undecided);
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
        assertEq(runs.seats(run, nodes[0]).held, 100);
        expectRefusal(TooEarly.selector, block.timestamp + APPEAL);
        settle(0, soft);
        pass(APPEAL);
        vm.prank(validators[1]);
        expectRefusal(TooLate.selector, block.timestamp);
        court.challengeAgain(run, nodes[0], soft, EVIDENCE);
        settle(0, soft);
        assertStage(0, soft, ICourt.Stage.Returned);
        assertState(ref, ICourt.State.Cleared);
        assertEq(runs.seats(run, nodes[0]).strikes, 0);
        assertEq(runs.seats(run, nodes[0]).openCases, 0);
        assertEq(runs.claim(run, nodes[0]), 100 * uint256(REWARD));
    }

    function test_a_case_without_a_majority_is_challenged_once_more_by_another() public {
        appeal(0, soft);
        vote(1, 0, soft, true);
        pass(VOTE);
        vm.prank(validators[1]);
        expectRefusal(WrongState.selector);
        court.challengeAgain(run, nodes[0], soft, EVIDENCE);
        settle(0, soft);
        vm.prank(validators[0]);
        expectRefusal(Denied.selector, validators[0]);
        court.challengeAgain(run, nodes[0], soft, EVIDENCE);
        vm.expectEmit(address(court));
        emit ICourt.ChallengedAgain(run, nodes[0], soft, validators[4], EVIDENCE);
        challengeAgain(4, 0, soft);
        assertStage(0, soft, ICourt.Stage.Open);
        assertEq(bench.validators(run, validators[4]).atRisk, BOND);
        appeal(0, soft);
        assertEq(court.cases(run, nodes[0], soft).jurors, 3); // neither challenger
        vm.prank(validators[0]);
        expectRefusal(Denied.selector, validators[0]);
        court.vote(run, nodes[0], soft, 0, 0, EVIDENCE);
        vote(1, 0, soft, false); // may think again
        pass(VOTE);
        settle(0, soft);
        assertStage(0, soft, ICourt.Stage.Returned); // there is no third time
        assertState(ref, ICourt.State.Cleared);
    }

    function test_the_second_challenge_is_decided_like_the_first() public {
        appeal(0, soft);
        pass(VOTE);
        settle(0, soft);
        challengeAgain(4, 0, soft);
        pass(APPEAL);
        settle(0, soft); // silence of the accused
        assertStage(0, soft, ICourt.Stage.Upheld);
        assertState(ref, ICourt.State.Revoked);
        assertEq(runs.seats(run, nodes[0]).held, 0);
        assertEq(runs.funds(run).reserved, 0);
    }

    function test_a_hard_case_without_a_majority_shuts_nobody_out() public {
        IRuns.SubmissionRef memory accused = submit(0, 30);
        submit(0, 7);
        uint256 hard = accuse(1, 2, accused);
        appeal(0, hard);
        pass(VOTE);
        settle(0, hard);
        assertRole(0, IRuns.Role.Active);
        assertFalse(runs.seats(run, nodes[0]).swept);
        assertEq(runs.seats(run, nodes[0]).openHard, 0);
        assertState(accused, ICourt.State.Undecided);
        assertEq(bench.validators(run, validators[1]).atRisk, 0);
        assertEq(bench.validators(run, validators[2]).atRisk, 0);
        publish(run);
        submit(0, 1);
        pass(APPEAL);
        settle(0, hard);
        assertState(accused, ICourt.State.Cleared);
        assertEq(runs.funds(run).reserved, 138 * uint256(REWARD));
    }

    function test_a_verdict_splits_a_list() public {
        IRuns.SubmissionRef[] memory list = submitMany(1, 20, 10);
        uint256 number = challenge(0, list);
        appeal(1, number);
        uint256 foundFalse = 0xF00F1; // nine of them
        for (uint256 v = 1; v < 4; ++v) {
            ballot(v, 1, number, foundFalse, 0);
        }
        assertStage(1, number, ICourt.Stage.Split);
        for (uint256 i; i < 20; ++i) {
            bool revoked = foundFalse >> i & 1 != 0;
            assertState(list[i], revoked ? ICourt.State.Revoked : ICourt.State.Cleared);
        }
        assertEq(runs.funds(run).reserved, (100 + 110) * uint256(REWARD)); // and the other node's
        assertEq(runs.seats(run, nodes[1]).strikes, STRIKES);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND + findersOf(FEE * STRIKES));
        assertEq(runs.seats(run, nodes[1]).locked, NODE_STAKE - uint256(FEE) * STRIKES); // something was cleared: no appeal is lost
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[1]), 110 * uint256(REWARD));
    }

    function test_a_split_list_returns_each_submission_with_its_size_and_its_age() public {
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](12);
        for (uint32 i; i < 12; ++i) {
            if (i == 6) pass(WINDOW / 2);
            list[i] = submit(1, 10 + i);
        }
        uint256 number = challenge(0, list);
        appeal(1, number);
        for (uint256 v = 1; v < 4; ++v) {
            ballot(v, 1, number, 0x7DE, 0); // 0, 5 and 11 are good
        }
        assertEq(runs.funds(run).reserved, (100 + 10 + 15 + 21) * uint256(REWARD));
        pass(ripening(WINDOW) - WINDOW / 2);
        assertEq(runs.claim(run, nodes[1]), (10 + 15) * uint256(REWARD));
        pass(WINDOW);
        assertEq(runs.claim(run, nodes[1]), 21 * uint256(REWARD));
    }

    function test_a_mistake_costs_the_bond_of_a_case_that_had_listed_it_alone() public {
        IPolicies.Policy memory p = policy();
        p.bondBps = 5_000;
        switchTo(p);
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](2);
        (list[0], list[1]) = (submit(1, 9_900), submit(1, 100));
        uint256 number = challenge(0, list);
        assertEq(bench.validators(run, validators[0]).atRisk, 50 * MUR);
        appeal(1, number);
        for (uint256 v = 1; v < 4; ++v) {
            ballot(v, 1, number, 1, 0); // the large one is false, the small one good
        }
        assertEq(bench.validators(run, validators[0]).locked, VALIDATOR_STAKE - BOND);
        assertEq(bench.validators(run, validators[0]).atRisk, 0);
    }

    function test_who_judges_differently_is_paid_for_what_the_majority_found_too() public {
        IRuns.SubmissionRef[] memory list = submitMany(1, 4, 10);
        uint256 number = challenge(0, list);
        appeal(1, number);
        ballot(1, 1, number, 15, 0);
        ballot(2, 1, number, 14, 0); // finds one of four good
        ballot(3, 1, number, 15, 0);
        assertStage(1, number, ICourt.Stage.Appealed); // two of four is no majority
        ballot(4, 1, number, 15, 0);
        assertStage(1, number, ICourt.Stage.Upheld);
        assertEq(bonds.accounts(validators[1]).active, STAKE + JURY_FEE);
        assertEq(bonds.accounts(validators[2]).active, STAKE + 3 * uint256(JURY_FEE) / 4);
        assertEq(bonds.accounts(validators[3]).active, STAKE + JURY_FEE);
    }

    function test_a_jury_finds_a_submission_of_a_soft_case_hard() public {
        appeal(0, soft);
        ballot(1, 0, soft, 1, 1);
        ballot(2, 0, soft, 1, 1);
        ballot(3, 0, soft, 1, 0); // false it is: whether it is hard waits for the last juror
        assertStage(0, soft, ICourt.Stage.Appealed);
        ballot(4, 0, soft, 1, 1);
        assertTrue(runs.seats(run, nodes[0]).swept);
        assertRole(0, IRuns.Role.Banned);
        assertState(ref, ICourt.State.Revoked);
        assertTrue(court.cases(run, nodes[0], soft).hard);
    }

    function test_a_hard_case_found_merely_false_is_a_soft_verdict() public {
        uint256 hard = accuse(1, 2, submit(0, 30));
        appeal(0, hard);
        ballot(0, 0, hard, 1, 0);
        ballot(3, 0, hard, 1, 0);
        assertStage(0, hard, ICourt.Stage.Upheld);
        assertFalse(court.cases(run, nodes[0], hard).hard);
        assertFalse(runs.seats(run, nodes[0]).swept);
        assertEq(runs.seats(run, nodes[0]).strikes, 1);
        assertEq(runs.seats(run, nodes[0]).openHard, 0);
        // who brought it pays the jury, and has no share of the fee
        for (uint256 v = 1; v < 3; ++v) {
            assertEq(bench.validators(run, validators[v]).locked, VALIDATOR_STAKE - 3 * (JURY_FEE / 3));
            assertEq(bonds.accounts(validators[v]).active, STAKE - 3 * (JURY_FEE / 3));
        }
    }

    function test_an_even_bench_that_ties_clears() public {
        appeal(0, soft);
        vote(1, 0, soft, true);
        vote(2, 0, soft, true);
        vote(3, 0, soft, false);
        assertStage(0, soft, ICourt.Stage.Appealed);
        vote(4, 0, soft, false);
        assertStage(0, soft, ICourt.Stage.Cleared);
    }

    function test_ballots_are_about_the_list_and_hard_is_false() public {
        appeal(0, soft);
        vm.startPrank(validators[1]);
        expectRefusal(ICourt.InvalidBallot.selector);
        court.vote(run, nodes[0], soft, 2, 0, EVIDENCE);
        expectRefusal(ICourt.InvalidBallot.selector);
        court.vote(run, nodes[0], soft, 0, 1, EVIDENCE);
    }

    function test_abstaining_is_done_once_instead_of_voting_and_in_few_words() public {
        appeal(0, soft);
        vm.startPrank(validators[1]);
        expectRefusal(TooLong.selector, 129, 128);
        court.abstain(run, nodes[0], soft, string(new bytes(129)));
        vm.expectEmit(address(court));
        emit ICourt.Abstained(run, nodes[0], soft, validators[1], "weights gone");
        court.abstain(run, nodes[0], soft, "weights gone");
        expectRefusal(Denied.selector, validators[1]);
        court.abstain(run, nodes[0], soft, "weights gone");
        expectRefusal(Denied.selector, validators[1]);
        court.vote(run, nodes[0], soft, 0, 0, EVIDENCE);
        vm.stopPrank();
        vote(2, 0, soft, false);
        vm.prank(validators[2]);
        expectRefusal(Denied.selector, validators[2]);
        court.abstain(run, nodes[0], soft, "late");
        assertTrue(court.isJuror(run, nodes[0], soft, validators[3]));
        assertFalse(court.isJuror(run, nodes[0], soft, validators[2]));
        assertFalse(court.isJuror(run, nodes[0], soft, validators[1]));
        assertFalse(court.isJuror(run, nodes[0], soft, STRANGER));
    }

    function test_the_bond_grows_with_what_a_case_withholds() public {
        bench.seated(run);
        IRuns.SubmissionRef memory large = submit(1, 10_000); // worth 100
        uint256 bond = 100 * uint256(MUR) * BOND_BPS / 10_000;
        assertEq(court.bondFor(run, 10_000), bond);
        assertEq(court.bondFor(run, 1), BOND);
        IPolicies.Policy memory p = policy();
        p.bondBps = 5_000;
        switchTo(p);
        large = submit(2, 10_000);
        uint256 number = challenge(0, large);
        assertEq(bench.validators(run, validators[0]).atRisk, 50 * MUR);
        appeal(2, number);
        poll(2, number, false);
        assertEq(bench.validators(run, validators[0]).locked, 10 * MUR);
    }

    function test_a_lost_hard_appeal_costs_bond_and_penalty() public {
        uint256 hard = accuse(1, 2, submit(0, 30));
        appeal(0, hard);
        poll(0, hard, true);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - BOND - PENALTY);
        assertTrue(runs.seats(run, nodes[0]).swept);
    }

    /// @dev Who could have said whether it is cheating, and did not, was waited for in vain.
    function test_silence_is_charged_where_only_the_charge_stayed_open() public {
        uint256 hard = accuse(0, 1, submit(0, 30));
        appeal(0, hard);
        ballot(2, 0, hard, 1, 1);
        ballot(3, 0, hard, 1, 0);
        assertStage(0, hard, ICourt.Stage.Appealed); // false, and validator 4 could make it hard
        pass(VOTE);
        settle(0, hard);
        assertStage(0, hard, ICourt.Stage.Upheld);
        assertFalse(runs.seats(run, nodes[0]).swept);
        assertEq(bonds.accounts(validators[4]).active, STAKE - JURY_FEE / 3);
        assertEq(bonds.accounts(validators[3]).active, STAKE + JURY_FEE / 3);
        assertEq(bonds.accounts(validators[2]).active, STAKE); // no majority found it hard
    }

    /// @dev An accusation takes the only submission that was not decided: the others had nothing left to say.
    function test_nobody_is_silent_where_all_was_decided() public {
        IRuns.SubmissionRef[] memory list = submitMany(1, 2, 10);
        uint256 number = challenge(0, list);
        appeal(1, number);
        ballot(1, 1, number, 2, 0);
        ballot(2, 1, number, 2, 0);
        accuse(3, 4, list[1]);
        assertStage(1, number, ICourt.Stage.Appealed);
        pass(VOTE);
        settle(1, number);
        assertStage(1, number, ICourt.Stage.Cleared);
        assertEq(bench.validators(run, validators[3]).locked, VALIDATOR_STAKE);
        assertEq(bench.validators(run, validators[4]).locked, VALIDATOR_STAKE);
    }

    function test_an_acquittal_costs_both_who_signed() public {
        uint256 hard = accuse(1, 2, submit(0, 30));
        appeal(0, hard);
        vote(3, 0, hard, false);
        vote(4, 0, hard, false);
        assertEq(bonds.accounts(validators[1]).active, STAKE - BOND);
        assertEq(bonds.accounts(validators[2]).active, STAKE - BOND);
        assertEq(bonds.accounts(operators[0]).active, STAKE + compensation(2 * BOND, 2, 3));
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

    function test_lost_appeals_of_the_key_come_out_of_the_penalty_alone() public {
        uint256 others = NODE_STAKE - PENALTY;
        for (uint256 i; i < 4; ++i) {
            uint256 number = i == 0 ? soft : challenge(i % 2, submit(0, 1));
            vm.prank(nodes[0]);
            if (i == 3) expectRefusal(InsufficientStake.selector, 0, BOND);
            court.appeal(run, nodes[0], number);
            if (i == 3) break;
            poll(0, number, true);
            assertEq(runs.seats(run, nodes[0]).spent, (i + 1) * BOND);
        }
        assertEq(runs.seats(run, nodes[0]).locked, others - 3 * FEE);
        appeal(0, 4); // the operator still can
        poll(0, 4, true);
        assertEq(runs.seats(run, nodes[0]).locked, others - 4 * FEE - BOND);
    }

    function test_a_conviction_takes_what_is_left_of_the_penalty() public {
        IRuns.SubmissionRef memory cheat = submit(0, 1);
        vm.prank(nodes[0]);
        court.appeal(run, nodes[0], soft);
        poll(0, soft, true);
        uint256 hard = accuse(2, 3, cheat);
        pass(APPEAL);
        settle(0, hard);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY - FEE);
        assertEq(runs.seats(run, nodes[0]).spent, PENALTY);
    }

    function test_lost_appeals_of_the_operator_leave_the_penalty_to_pay() public {
        IRuns.SubmissionRef memory cheat = submit(0, 1);
        appeal(0, soft);
        poll(0, soft, true);
        uint256 hard = accuse(2, 3, cheat);
        pass(APPEAL);
        settle(0, hard);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY - FEE - BOND);
    }
}
