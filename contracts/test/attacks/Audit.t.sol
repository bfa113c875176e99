// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {IWeights} from "../../src/interfaces/IWeights.sol";
import {Denied, InsufficientStake, TooLate, TooLong, ZeroAmount} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

/// @notice A trainer that is a contract, and tries manifests until it likes the beacon.
contract Grinder {
    function publish(IWeights weights, uint256 run, uint32 step, bytes32 manifest) external {
        weights.publish(run, step, manifest);
    }
}

/// @title Attacks on the dispute game that succeeded once
/// @notice Each is played as it was; what it gained before is refused, or costs its players more than the victim.
contract AuditTest is World {
    /// @dev An accomplice lists junk with one honest submission, so that jurors must acquit the junk for good: 401 were paid for 20.
    function test_bundling_acquits_only_what_is_good() public {
        IRuns.SubmissionRef[] memory list = submitMany(0, 5, 2_000);
        uint256 number = challenge(0, list);
        appeal(0, number);
        for (uint256 v = 1; v < 4; ++v) {
            ballot(v, 0, number, 0xF, 0); // four are junk, the fifth is good
        }
        for (uint256 i; i < 5; ++i) {
            assertState(list[i], i < 4 ? ICourt.State.Revoked : ICourt.State.Cleared);
        }
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 2_000 * uint256(REWARD));
        assertEq(runs.seats(run, nodes[0]).strikes, 4);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND + findersOf(4 * FEE));
    }

    /// @dev The operator of the accused seat, being a validator, votes in its own case.
    function test_nobody_judges_its_own_seat() public {
        operators[0] = validators[2];
        (keys[0], nodes[0]) = (0xF01, vm.addr(0xF01));
        switchTo(policy());
        uint256 number = accuse(0, 1, submit(0, 1_000));
        vm.prank(validators[2]);
        court.appeal(run, nodes[0], number); // as operator
        assertEq(court.cases(run, nodes[0], number).jurors, 2);
        vm.prank(validators[2]);
        expectRefusal(Denied.selector, validators[2]);
        court.vote(run, nodes[0], number, 0, 0, EVIDENCE); // as juror
        poll(0, number, true);
        assertTrue(runs.seats(run, nodes[0]).swept);
    }

    /// @dev With the smallest bench, a validator's honest appeal took the last juror away; liars then lost nothing.
    function test_an_appeal_does_not_empty_the_jury() public {
        approve(run, validators[3], false);
        approve(run, validators[4], false);
        pass(1);
        publish(run); // three are seated: a jury can be found
        IRuns.SubmissionRef memory ref = submit(0, 1_000); // honest
        uint256 number = accuse(0, 1, ref); // two liars
        vm.prank(validators[2]);
        expectRefusal(IBench.TooFewValidators.selector, 0, 1);
        court.appeal(run, nodes[0], number); // it is the only juror
        vm.prank(nodes[0]);
        court.appeal(run, nodes[0], number);
        vote(2, 0, number, false);
        assertState(ref, ICourt.State.Cleared);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND);
        assertEq(bonds.accounts(validators[1]).active, STAKE - BOND);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 1_000 * uint256(REWARD));
    }

    /// @dev A third colluder appeals first and takes the compensation: framing cost one bond instead of two.
    function test_the_compensation_is_the_victims_whoever_appeals() public {
        uint256 number = accuse(0, 1, submit(0, 1_000));
        vm.prank(validators[2]);
        court.appeal(run, nodes[0], number);
        poll(0, number, false);
        uint256 left = uint256(bonds.accounts(validators[0]).active) + bonds.accounts(validators[1]).active
            + bonds.accounts(validators[2]).active;
        assertLe(left + 2 * BOND - JURY_FEE, 3 * uint256(STAKE));
        // of two jurors one was enough, and the appellant was paid like the other
        assertEq(bonds.accounts(operators[0]).active, STAKE + compensation(2 * BOND, 2, 2));
    }

    /// @dev Two of eleven jurors convicted an honest node before the other nine had the time to vote.
    function test_a_minority_convicts_nobody() public {
        for (uint256 i; i < 8; ++i) {
            address v = address(uint160(0x900 + i));
            bonds.deposit(v, STAKE);
            approve(run, v, true);
            enlist(run, v, true);
        }
        pass(10);
        publish(run);
        uint256 number = accuse(0, 1, submit(0, 1_000));
        appeal(0, number);
        assertEq(court.cases(run, nodes[0], number).jurors, 11);
        vote(2, 0, number, true);
        vote(3, 0, number, true);
        assertStage(0, number, ICourt.Stage.Appealed);
        for (uint256 i; i < 6; ++i) {
            vm.prank(address(uint160(0x900 + i)));
            court.vote(run, nodes[0], number, 0, 0, EVIDENCE);
        }
        assertStage(0, number, ICourt.Stage.Cleared);
    }

    /// @dev A trainer that is a contract chose twelve bits of the beacon in one transaction.
    function test_a_trainer_cannot_see_the_beacon_of_its_manifest() public {
        Grinder g = new Grinder();
        IPolicies.Policy memory p = policy();
        p.trainer = address(g);
        run = open(p);
        people(run);
        pass(2);
        g.publish(weights, run, 0, bytes32(uint256(1)));
        assertEq(weights.beaconOf(run, 0), bytes32(0)); // in its own block, and in the next
        expectRefusal(IRuns.WrongStep.selector, 0, 1);
        g.publish(weights, run, 0, bytes32(uint256(2))); // there is no second try
        vm.roll(block.number + 1);
        assertEq(weights.beaconOf(run, 0), bytes32(0));
        vm.roll(block.number + 1);
        assertNotEq(weights.beaconOf(run, 0), bytes32(0));
    }

    /// @dev A seat of 100 froze a budget of 500 for two days with empty commitments.
    function test_an_unproven_seat_freezes_no_more_than_its_stake() public {
        run = policies.create(policy(), SPEC);
        runs.fund(run, 500 * MUR);
        people(run);
        publish(run);
        IRuns.SubmissionRef[] memory junk = submitMany(0, 1, 10_000);
        bytes32 beacon = beaconOf(run, 0);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.Overexposed.selector, 10_001, 10_000);
        runs.submit(run, SPEC, 0, 1, 1, beacon);
        assertEq(runs.funds(run).free, 500 * MUR - NODE_STAKE);
        submit(1, 10_000);
        challenge(0, junk);
        pass(APPEAL);
        settle(0, 1);
        assertEq(runs.funds(run).free, 500 * MUR - NODE_STAKE);
    }

    /// @dev Appeals cost 21, 19, 0, 0, 0 … and every one asked the jury anew.
    function test_no_appeal_is_free() public {
        IRuns.SubmissionRef[] memory works = submitMany(0, 6, 1);
        vm.prank(validators[0]);
        bench.reinforce(run, 6 * BOND);
        for (uint256 i; i < 6; ++i) {
            challenge(0, works[i]);
        }
        for (uint256 i; i < 5; ++i) {
            uint256 before = runs.seats(run, nodes[0]).locked;
            appeal(0, i + 1);
            poll(0, i + 1, true);
            uint256 cost = before - runs.seats(run, nodes[0]).locked;
            assertTrue(cost >= BOND || runs.seats(run, nodes[0]).locked == 0);
            assertGt(cost, 0);
        }
        assertEq(runs.seats(run, nodes[0]).locked, 0);
        vm.prank(operators[0]);
        expectRefusal(InsufficientStake.selector, 0, BOND);
        court.appeal(run, nodes[0], 6);
    }

    /// @dev A case that escalation prolonged outlived its jurors.
    function test_no_case_outlives_its_jurors() public {
        IRuns.SubmissionRef memory ref = submit(0, 1_000);
        uint256 t = block.timestamp;
        for (uint256 v; v < 5; ++v) {
            approve(run, validators[v], false);
        }
        vm.warp(t + WINDOW - 1);
        uint256 number = challenge(0, ref);
        vm.warp(t + WINDOW + APPEAL - 2);
        appeal(0, number);
        vm.warp(t + WINDOW + APPEAL + VOTE - 3);
        ICourt.Receipt memory second = coSignature(2, ref);
        vm.prank(validators[1]);
        expectRefusal(TooLate.selector, t + WINDOW);
        court.accuse(run, ref, 1, EVIDENCE, second); // escalation ends with the window
        vm.warp(t + WINDOW + APPEAL + VOTE - 2);
        settle(0, number);
        vm.warp(t + WINDOW + 2 * APPEAL + VOTE - 3);
        challengeAgain(1, 0, number);
        vm.warp(t + WINDOW + 3 * APPEAL + VOTE - 4);
        appeal(0, number);
        vm.warp(t + SPAN - 5); // the last second in which anybody can vote
        assertTrue(court.isJuror(run, nodes[0], number, validators[2]));
        vote(3, 0, number, false);
        vote(4, 0, number, false);
        assertState(ref, ICourt.State.Cleared);
        vm.warp(t + SPAN);
        assertEq(runs.seats(run, nodes[0]).openCases, 0);
    }

    /// @dev One conviction closed the book on an accomplice's other false receipts.
    function test_ten_false_receipts_cost_ten_bonds() public {
        IRuns.SubmissionRef[] memory works = submitMany(0, 10, 1_000);
        vm.prank(validators[0]);
        bench.reinforce(run, 9 * BOND);
        vm.prank(validators[1]);
        bench.reinforce(run, 9 * BOND);
        vm.prank(validators[2]);
        bench.reinforce(run, 9 * BOND);
        accuse(0, 1, works[0]);
        pass(APPEAL);
        settle(0, 1);
        for (uint256 i = 1; i < 10; ++i) {
            accuse(0, 1, works[i]);
        }
        pass(APPEAL);
        uint256 slashed;
        for (uint256 i; i < 10; ++i) {
            if (i != 0) settle(0, i + 1);
            bytes memory signature = signVerdict(run, court.submissionId(run, works[i]), 1, 1, validatorKeys[2]);
            slashed += court.impeach(run, works[i], i + 1, ICourt.Receipt(validators[2], 1, EVIDENCE, signature));
        }
        assertEq(slashed, 10 * uint256(BOND));
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY); // one penalty
    }

    /// @dev A stolen hot key appealed hopelessly until all of the operator's stake beyond the penalty was gone.
    function test_a_stolen_key_loses_the_penalty_at_most() public {
        IRuns.SubmissionRef[] memory works = submitMany(0, 5, 1);
        vm.prank(validators[0]);
        bench.reinforce(run, 5 * BOND);
        for (uint256 i; i < 4; ++i) {
            uint256 number = challenge(0, works[i]);
            vm.prank(nodes[0]);
            if (i == 3) expectRefusal(InsufficientStake.selector, 0, BOND);
            court.appeal(run, nodes[0], number);
            if (i < 3) poll(0, number, true);
        }
        accuse(0, 1, works[4]);
        pass(APPEAL);
        settle(0, 4);
        settle(0, 5);
        assertTrue(runs.seats(run, nodes[0]).swept);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - PENALTY - STRIKES * FEE);
    }

    function test_a_peer_id_of_100_kilobytes_is_refused() public {
        Consent memory c = consentOf(run, 0);
        c.peer = new bytes(65);
        bytes memory signature = signConsent(c, keys[0]);
        expectRefusal(TooLong.selector, 65, 64);
        join(c, signature, "");
        c.peer = new bytes(64);
        join(c, signConsent(c, keys[0]), "");
    }

    /// @dev One validator listed 255 honest submissions under one bond; a jury too slow for them left them all revoked, for nothing.
    function test_a_slow_jury_revokes_nothing_and_the_challenger_pays() public {
        IRuns.SubmissionRef[] memory works = submitMany(0, 255, 39);
        pass(WINDOW - 60);
        uint256 number = challenge(0, works);
        appeal(0, number);
        vote(1, 0, number, false);
        abstain(2, 0, number);
        abstain(3, 0, number); // one juror was quick enough; two could not
        pass(VOTE);
        settle(0, number);
        assertStage(0, number, ICourt.Stage.Undecided);
        assertEq(bonds.accounts(validators[0]).active, STAKE - BOND * 3 / 4); // of the fee the silent fourth paid its part
        pass(APPEAL);
        settle(0, number);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 255 * 39 * uint256(REWARD));
    }

    /// @dev An old offer took a seat that had been released, joined anew and earned since.
    function test_an_old_offer_takes_nothing() public {
        vm.prank(operators[0]);
        runs.offer(run, nodes[0], STRANGER, NEVER);
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        pass(SPAN);
        runs.release(run, nodes[0]);
        seat(run, 0);
        vm.prank(STRANGER);
        expectRefusal(Denied.selector, STRANGER);
        runs.accept(run, nodes[0]);
        uint40 deadline = uint40(block.timestamp + 1 days);
        vm.prank(operators[0]);
        runs.offer(run, nodes[0], STRANGER, deadline);
        pass(1 days + 1);
        vm.prank(STRANGER);
        expectRefusal(TooLate.selector, deadline);
        runs.accept(run, nodes[0]);
    }

    /// @dev A leaked trainer key emptied the wages at once, and could not be replaced.
    function test_a_leaked_trainer_key_pays_validators_a_windows_wages_and_is_replaced() public {
        IPolicies.Policy memory p = policy();
        (p.trainer, p.voucherCap) = (vm.addr(0x77), 50 * MUR);
        run = open(p);
        people(run);
        vouchers.fund(run, 500 * MUR);
        bytes memory signature = voucher(STRANGER, 500 * MUR);
        expectRefusal(Denied.selector, STRANGER);
        vouchers.redeem(run, STRANGER, 500 * MUR, signature); // no validator
        signature = voucher(validators[0], 500 * MUR);
        assertEq(vouchers.redeem(run, validators[0], 500 * MUR, signature), 50 * MUR);
        assertEq(vouchers.left(run), 0);
        vm.prank(OWNER);
        weights.appoint(run, TRAINER);
        pass(NOTICE);
        expectRefusal(Denied.selector, TRAINER);
        vouchers.redeem(run, validators[0], 500 * MUR, signature);
    }

    /// @dev Many small vouchers in one window would pass the cap together.
    function test_the_vouchers_of_a_window_pass_its_cap_no_more_than_one_does() public {
        IPolicies.Policy memory p = policy();
        (p.trainer, p.voucherCap) = (vm.addr(0x77), 50 * MUR);
        run = open(p);
        people(run);
        vouchers.fund(run, 500 * MUR);
        assertEq(vouchers.redeem(run, validators[0], 20 * MUR, voucher(validators[0], 20 * MUR)), 20 * MUR);
        assertEq(vouchers.redeem(run, validators[1], 20 * MUR, voucher(validators[1], 20 * MUR)), 20 * MUR);
        assertEq(vouchers.left(run), 10 * MUR);
        assertEq(vouchers.redeem(run, validators[0], 45 * MUR, voucher(validators[0], 45 * MUR)), 10 * MUR);
        bytes memory signature = voucher(validators[1], 45 * MUR);
        expectRefusal(ZeroAmount.selector);
        vouchers.redeem(run, validators[1], 45 * MUR, signature);
        pass(WINDOW);
        assertEq(vouchers.redeem(run, validators[1], 45 * MUR, signature), 25 * MUR);
    }

    function voucher(address to, uint256 total) private view returns (bytes memory) {
        bytes32 kind = keccak256("Voucher(uint256 run,address validator,uint256 total)");
        return sign(keccak256(abi.encode(kind, run, to, total)), 0x77);
    }

    /// @dev Two liars shut an honest node out for 72 hours for 40: again and again, while the jury was silent.
    function test_a_node_is_shut_out_for_appeal_and_vote_in_each_span() public {
        IRuns.SubmissionRef[] memory works = submitMany(0, 3, 100);
        uint256 t = block.timestamp;
        appeal(0, accuse(0, 1, works[0]));
        bytes32 beacon = beaconOf(run, 0);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.CaseOpen.selector, 1);
        runs.submit(run, SPEC, 0, 3, 1, beacon);
        vm.warp(t + WINDOW - 1);
        appeal(0, accuse(2, 3, works[1])); // the next liars
        vm.warp(t + APPEAL + VOTE - 1);
        vm.prank(nodes[0]);
        expectRefusal(IRuns.CaseOpen.selector, 2);
        runs.submit(run, SPEC, 0, 3, 1, beacon);
        vm.warp(t + APPEAL + VOTE);
        submit(0, 1); // an accusation is still open
        assertEq(runs.seats(run, nodes[0]).openHard, 2);
    }

    /// @dev A friend's hard case that names an honest sample shields nothing, whoever loses it.
    function test_a_friends_lost_case_does_not_shield() public {
        IRuns.SubmissionRef memory cheat = submit(0, 1_000);
        uint256 number = accuse(0, 1, cheat);
        appeal(0, number);
        poll(0, number, false);
        number = accuse(2, 3, cheat);
        appeal(0, number);
        poll(0, number, true);
        assertTrue(runs.seats(run, nodes[0]).swept);
    }
}
