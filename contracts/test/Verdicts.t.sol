// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Bonds} from "../src/Bonds.sol";
import {Runs} from "../src/Runs.sol";
import {Base} from "./support/Base.sol";

/// @notice challenge, settle, and what follows from soft and hard verdicts. Validator 0 accuses node 0; validators 1 and 2
/// are the jury.
contract VerdictsTest is Base {
    // ---- challenge --------------------------------------------------------------------------------------------------

    function test_aChallengeIsRecordedAndTheBondLocked() public {
        Runs.Ref memory ref = submit(0, 100);
        vm.expectEmit(address(runs));
        emit Runs.Challenged(run, nodes[0], ref.root, 0, 0, validators[0], true, keccak256("evidence"));
        challenge(0, ref, true);

        Runs.Case memory c = caseOf(ref);
        assertEq(c.challenger, validators[0]);
        assertTrue(c.hard);
        assertEq(c.deadline, block.timestamp + APPEAL);
        assertEq(c.evidence, keccak256("evidence"));
        assertState(ref, Runs.State.Challenged);
        assertStake(validators[0], STAKE, VALIDATOR_STAKE + BOND);
    }

    function test_onlySeatedValidatorsChallenge() public {
        Runs.Ref memory ref = submit(0, 100);
        address[3] memory others = [OWNER, operators[1], nodes[1]];
        for (uint256 i; i < 3; ++i) {
            expectRefusal(Runs.Denied.selector);
            vm.prank(others[i]);
            runs.challenge(run, ref, false, bytes32(0));
        }
        enlist(run, validators[0], false);
        expectRefusal(Runs.Denied.selector);
        challenge(0, ref, false);
        approve(run, validators[1], false);
        expectRefusal(Runs.Denied.selector);
        challenge(1, ref, false);
    }

    function test_aValidatorOfOneRunIsNoneInAnother() public {
        uint256 other = open(policy());
        people(other);
        enlist(other, validators[0], false);
        publish(other);
        run = other;
        Runs.Ref memory ref = submit(0, 100);
        expectRefusal(Runs.Denied.selector);
        challenge(0, ref, false);
    }

    function test_onlyWhatWasSubmittedIsChallenged() public {
        Runs.Ref memory ref = submit(0, 100);
        ref.root = keccak256("another root");
        expectRefusal(Runs.WrongState.selector);
        challenge(0, ref, false);
    }

    function test_aWorkIsChallengedOnce() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        expectRefusal(Runs.WrongState.selector);
        challenge(1, ref, false);
        convictBySilence(ref);
        expectRefusal(Runs.WrongState.selector);
        challenge(1, ref, false);
    }

    function test_anAcquittedWorkIsNotChallengedAgain() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, true);
        appeal(0, ref);
        decide(ref, false);
        expectRefusal(Runs.WrongState.selector);
        challenge(1, ref, true);
    }

    function testFuzz_aLateChallengeIsRefused(uint256 start, uint256 wait, bool hard) public {
        pass(bound(start, 0, 30 days)); // anywhere within an epoch
        Runs.Ref memory ref = submit(0, 100);
        wait = bound(wait, 0, 2 * WINDOW);
        pass(wait);
        if (wait >= WINDOW) expectRefusal(Runs.TooLate.selector);
        challenge(0, ref, hard);
    }

    function test_theLastSecondOfTheWindowIsNotLate() public {
        Runs.Ref memory first = submit(0, 100);
        Runs.Ref memory second = submit(0, 100);
        pass(WINDOW - 1);
        challenge(0, first, false);
        pass(1);
        expectRefusal(Runs.TooLate.selector);
        challenge(0, second, false);
    }

    function test_aChallengerNeedsABond() public {
        Runs.Ref memory ref = submit(0, 100);
        vm.prank(validators[0]);
        bonds.unbond(STAKE - VALIDATOR_STAKE - BOND + 1);
        expectRefusal(Bonds.InsufficientStake.selector, BOND - 1, BOND);
        challenge(0, ref, false);
    }

    // ---- soft verdicts ----------------------------------------------------------------------------------------------

    function test_anUncontestedSoftVerdictTakesTheUnitsAndNothingElse() public {
        Runs.Ref memory bad = submit(0, 100);
        submit(0, 50);
        challenge(0, bad, false);
        assertUnits(0, 0, 50);
        assertEq(fundsOf(run).reserved, 150 * REWARD);

        pass(APPEAL);
        vm.expectEmit(address(runs));
        emit Runs.Revoked(run, nodes[0], bad.root, 0, 0, false, 100, 0);
        vm.prank(STRANGER); // anybody may close a case
        runs.settle(run, bad);

        assertState(bad, Runs.State.Revoked);
        assertEq(fundsOf(run).reserved, 50 * REWARD);
        assertEq(fundsOf(run).free, BUDGET - 50 * REWARD);
        assertStake(operators[0], STAKE, NODE_STAKE);
        assertStake(validators[0], STAKE, VALIDATOR_STAKE);
        assertRole(seatOf(run, nodes[0]).role, Runs.Role.Active);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 50 * REWARD);
    }

    function test_unitsUnderASoftCaseAreNotPaidWhenTheirWindowEnds() public {
        Runs.Ref memory ref = submit(0, 100);
        pass(WINDOW - 1);
        challenge(0, ref, false);
        appeal(0, ref);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 0);
        decide(ref, true);
        assertEq(runs.claim(run, nodes[0]), 0);
        assertEq(fundsOf(run).reserved, 0);
    }

    // ---- hard verdicts ----------------------------------------------------------------------------------------------

    function test_anUncontestedHardVerdictTakesTheWindowTheSeatAndThePenalty() public {
        submit(0, 30);
        pass(ripening(WINDOW)); // these 30 are out of reach
        submit(0, 70);
        Runs.Ref memory bad = submit(0, 100);
        challenge(0, bad, true);

        pass(APPEAL);
        vm.expectEmit(address(runs));
        emit Runs.Left(run, nodes[0], Runs.Role.Banned);
        vm.expectEmit(address(runs));
        emit Runs.Revoked(run, nodes[0], bad.root, 0, 2, true, 170, PENALTY);
        runs.settle(run, bad);

        assertState(bad, Runs.State.Revoked);
        assertRole(seatOf(run, nodes[0]).role, Runs.Role.Banned);
        assertStake(operators[0], STAKE - PENALTY, 0);
        assertStake(validators[0], STAKE, VALIDATOR_STAKE);
        assertEq(token.balanceOf(validators[0]), PENALTY / 5);
        assertEq(token.balanceOf(SINK), PENALTY - PENALTY / 5);
        assertEq(fundsOf(run).reserved, 30 * REWARD);
        assertUnits(0, 30, 0);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 30 * REWARD);
        assertEq(runs.claim(run, nodes[0]), 0);
    }

    function test_aHardVerdictTouchesNoOtherSeat() public {
        Runs.Ref memory bad = submit(0, 100);
        submit(1, 40);
        uint256 first = run;
        switchTo(policy());
        submit(0, 20);
        uint256 second = run;
        run = first;
        challenge(0, bad, true);
        convictBySilence(bad);
        assertUnits(1, 0, 40);
        run = second;
        assertUnits(0, 0, 20);
        assertRole(seatOf(second, nodes[0]).role, Runs.Role.Active);
        assertEq(fundsOf(second).reserved, 20 * REWARD);
    }

    function test_whatHadMaturedBeforeAHardCaseMayBeClaimedDuringIt() public {
        submit(0, 30);
        pass(ripening(WINDOW));
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, true);
        assertUnits(0, 30, 100);
        assertEq(runs.claim(run, nodes[0]), 30 * REWARD);
        convictBySilence(ref);
        assertEq(runs.claim(run, nodes[0]), 0);
        assertEq(fundsOf(run).reserved, 0);
    }

    /// @dev Nobody has called for the seat since its first units matured: the challenge itself must take note of them.
    function test_whatHadMaturedUnnoticedIsSafeFromAHardCaseToo() public {
        submit(0, 30);
        pass(WINDOW - 1);
        Runs.Ref memory bad = submit(0, 100);
        pass(ripening(WINDOW) - WINDOW);
        challenge(0, bad, true);
        assertUnits(0, 30, 100);
        convictBySilence(bad);
        assertUnits(0, 30, 0);
        assertEq(runs.claim(run, nodes[0]), 30 * REWARD);
    }

    function test_whatMaturesDuringAHardCaseIsNotPaidBeforeTheVerdict() public {
        Runs.Ref memory ref = submit(0, 100);
        submit(0, 40);
        pass(WINDOW - 1);
        challenge(0, ref, true);
        appeal(0, ref);
        pass(ripening(WINDOW));
        assertUnits(0, 0, 140);
        assertEq(runs.claim(run, nodes[0]), 0);
        decide(ref, false);
        assertUnits(0, 140, 0);
        assertEq(runs.claim(run, nodes[0]), 140 * REWARD);
    }

    function test_whatMaturesDuringAHardCaseIsTakenByTheVerdict() public {
        Runs.Ref memory ref = submit(0, 100);
        submit(0, 40);
        pass(WINDOW - 1);
        challenge(0, ref, true);
        appeal(0, ref);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 0); // moves the matured units, pays none
        decide(ref, true);
        assertEq(fundsOf(run).reserved, 0);
        assertEq(runs.claim(run, nodes[0]), 0);
    }

    function test_theLastOfTwoHardCasesLiftsTheBlock() public {
        Runs.Ref memory first = submit(0, 100);
        Runs.Ref memory second = submit(0, 40);
        challenge(0, first, true);
        challenge(1, second, true);
        assertEq(seatOf(run, nodes[0]).openHard, 2);
        appeal(0, first);
        appeal(0, second);
        pass(VOTE);
        runs.settle(run, first);
        assertEq(seatOf(run, nodes[0]).openHard, 1);
        assertEq(runs.claim(run, nodes[0]), 0);
        runs.settle(run, second);
        assertEq(runs.claim(run, nodes[0]), 140 * REWARD);
    }

    /// @dev The second case must not declare safe what matured during the first.
    function test_aSecondHardCaseDoesNotFreeWhatTheFirstHolds() public {
        Runs.Ref memory first = submit(0, 100);
        pass(WINDOW - 1);
        Runs.Ref memory second = submit(0, 40);
        challenge(0, first, true);
        appeal(0, first);
        pass(WINDOW - 1); // the first has matured, the second may still be challenged
        challenge(0, second, true);
        assertUnits(0, 0, 140);
        assertEq(runs.claim(run, nodes[0]), 0);
        decide(first, true);
        assertEq(fundsOf(run).reserved, 0);
    }

    function test_aSoftVerdictAfterAHardOneIsRefused() public {
        Runs.Ref memory bad = submit(0, 100);
        Runs.Ref memory other = submit(0, 40);
        challenge(0, bad, true);
        convictBySilence(bad);
        expectRefusal(Runs.WrongState.selector);
        challenge(0, other, false);
    }

    function test_aSoftCaseOpenDuringAHardVerdictKeepsItsUnits() public {
        Runs.Ref memory bad = submit(0, 100);
        Runs.Ref memory disputed = submit(0, 40);
        challenge(0, disputed, false);
        challenge(0, bad, true);
        pass(APPEAL);
        runs.settle(run, bad);
        assertEq(fundsOf(run).reserved, 40 * REWARD);
        runs.settle(run, disputed);
        assertEq(fundsOf(run).reserved, 0);
        assertEq(fundsOf(run).free, BUDGET);
    }

    function test_anOwnersBanDoesNotKeepAHardVerdictFromItsPenalty() public {
        Runs.Ref memory bad = submit(0, 100);
        challenge(0, bad, true);
        vm.prank(OWNER);
        runs.ban(run, nodes[0]);
        convictBySilence(bad);
        assertStake(operators[0], STAKE - PENALTY, 0);
        assertEq(fundsOf(run).reserved, 0);
    }

    // ---- settle -----------------------------------------------------------------------------------------------------

    function test_nothingIsSettledBeforeItsTime() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        pass(APPEAL - 1);
        expectRefusal(Runs.TooEarly.selector);
        runs.settle(run, ref);
        appeal(0, ref);
        pass(VOTE - 1);
        expectRefusal(Runs.TooEarly.selector);
        runs.settle(run, ref);
    }

    function test_onlyOpenCasesAreSettled() public {
        Runs.Ref memory ref = submit(0, 100);
        expectRefusal(Runs.WrongState.selector);
        runs.settle(run, ref);
        challenge(0, ref, false);
        convictBySilence(ref);
        expectRefusal(Runs.WrongState.selector);
        runs.settle(run, ref);
        Runs.Ref memory cleared = submit(1, 100);
        challenge(0, cleared, false);
        appeal(1, cleared);
        decide(cleared, false);
        pass(VOTE);
        expectRefusal(Runs.WrongState.selector);
        runs.settle(run, cleared);
    }

    // ---- instant verdicts -------------------------------------------------------------------------------------------

    function test_withoutAppealsAVerdictIsInstantAndNeedsNoBond() public {
        switchTo(instantPolicy());
        Runs.Ref memory soft = submit(0, 100);
        Runs.Ref memory hard = submit(0, 40);
        uint128 locked = accountOf(validators[0]).locked;
        vm.prank(validators[0]);
        bonds.unbond(STAKE - locked); // nothing left for a bond

        challenge(0, soft, false);
        assertState(soft, Runs.State.Revoked);
        assertEq(fundsOf(run).reserved, 40 * REWARD);
        assertEq(accountOf(operators[0]).active, STAKE);
        challenge(0, hard, true);
        assertState(hard, Runs.State.Revoked);
        assertEq(fundsOf(run).reserved, 0);
        assertEq(accountOf(operators[0]).active, STAKE - PENALTY);
        assertEq(accountOf(validators[0]).locked, locked);
        assertEq(seatOf(run, nodes[0]).openHard, 0);
        expectRefusal(Runs.WrongState.selector);
        appeal(0, hard);
    }

    // ---- stake cannot flee ------------------------------------------------------------------------------------------

    /// @dev The slowest verdict there is: every step in its last second, the operator gone since the submission.
    function test_stakeCannotLeaveBeforeTheSlowestVerdict() public {
        Runs.Policy memory p = policy();
        p.vote = uint32(DELAY) - p.window - p.appeal - 1;
        switchTo(p);
        Runs.Ref memory bad = submit(0, 100);
        uint256 readyAt = block.timestamp + DELAY;
        for (uint256 run_ = 1; run_ <= run; ++run_) {
            leaveSeat(run_, 0);
        }
        vm.prank(operators[0]);
        bonds.unbond(STAKE - BOND); // all but what the appeal takes

        pass(p.window - 1);
        challenge(0, bad, true);
        pass(p.appeal - 1);
        appeal(0, bad);
        pass(p.vote - 1);
        expectRefusal(Bonds.TooEarly.selector, readyAt);
        vm.prank(operators[0]);
        bonds.withdraw();
        decide(bad, true);

        vm.warp(readyAt);
        vm.prank(operators[0]);
        assertEq(bonds.withdraw(), STAKE - BOND - PENALTY);
        assertEq(token.balanceOf(SINK) + token.balanceOf(validators[0]), PENALTY + BOND);
    }
}
