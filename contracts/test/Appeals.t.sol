// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Bonds} from "../src/Bonds.sol";
import {Runs} from "../src/Runs.sol";
import {Base} from "./support/Base.sol";

/// @notice appeal and vote. Validator 0 accuses node 0; validators 1 and 2 are the jury, and both are needed.
contract AppealsTest is Base {
    // ---- appeals ----------------------------------------------------------------------------------------------------

    function test_anAppealGivesTheJuryTimeAndRisksABond() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        pass(APPEAL - 1);
        vm.expectEmit(address(runs));
        emit Runs.Appealed(run, nodes[0], ref.root, 0, 0);
        appeal(0, ref);
        assertState(ref, Runs.State.Appealed);
        assertEq(caseOf(ref).deadline, block.timestamp + VOTE);
        assertStake(operators[0], STAKE, NODE_STAKE + BOND);
    }

    function test_onlyTheOperatorAppeals() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        address[3] memory others = [nodes[0], operators[1], validators[0]];
        for (uint256 i; i < 3; ++i) {
            expectRefusal(Runs.Denied.selector);
            vm.prank(others[i]);
            runs.appeal(run, ref);
        }
    }

    function test_onlyAChallengeIsAppealedAndOnlyOnce() public {
        Runs.Ref memory ref = submit(0, 100);
        expectRefusal(Runs.WrongState.selector);
        appeal(0, ref);
        challenge(0, ref, false);
        appeal(0, ref);
        expectRefusal(Runs.WrongState.selector);
        appeal(0, ref);
    }

    function test_aLateAppealIsRefused() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        pass(APPEAL);
        expectRefusal(Runs.TooLate.selector);
        appeal(0, ref);
    }

    function test_anAppealNeedsABond() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        vm.prank(operators[0]);
        bonds.unbond(STAKE - NODE_STAKE - BOND + 1);
        expectRefusal(Bonds.InsufficientStake.selector, BOND - 1, BOND);
        appeal(0, ref);
    }

    function test_aSoftAppealWonPaysTheUnitsAndHalfTheChallengersBond() public {
        Runs.Ref memory ref = submit(0, 100);
        pass(WINDOW - 1);
        challenge(0, ref, false);
        appeal(0, ref);
        pass(ripening(WINDOW));
        vote(1, ref, false);
        vm.expectEmit(address(runs));
        emit Runs.Cleared(run, nodes[0], ref.root, 0, 0);
        vote(2, ref, false);

        assertState(ref, Runs.State.Cleared);
        assertStake(operators[0], STAKE, NODE_STAKE);
        assertStake(validators[0], STAKE - BOND, VALIDATOR_STAKE);
        assertEq(token.balanceOf(operators[0]), BOND / 2);
        assertEq(token.balanceOf(SINK), BOND / 2);
        assertEq(runs.claim(run, nodes[0]), 100 * REWARD);
    }

    function test_aHardAppealWonGivesTheSeatBackItsWindow() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, true);
        appeal(0, ref);
        decide(ref, false);
        assertState(ref, Runs.State.Cleared);
        assertRole(seatOf(run, nodes[0]).role, Runs.Role.Active);
        assertEq(seatOf(run, nodes[0]).openHard, 0);
        assertStake(operators[0], STAKE, NODE_STAKE);
        assertStake(validators[0], STAKE - BOND, VALIDATOR_STAKE);
        assertUnits(0, 0, 100); // still within its window
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 100 * REWARD);
    }

    function test_aSoftAppealLostCostsTheUnitsAndTheBond() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        appeal(0, ref);
        vote(1, ref, true);
        vm.expectEmit(address(runs));
        emit Runs.Revoked(run, nodes[0], ref.root, 0, 0, false, 100, 0);
        vote(2, ref, true);
        assertStake(operators[0], STAKE - BOND, NODE_STAKE);
        assertStake(validators[0], STAKE, VALIDATOR_STAKE);
        assertEq(token.balanceOf(validators[0]), BOND / 5);
        assertEq(token.balanceOf(SINK), BOND - BOND / 5);
        assertEq(fundsOf(run).reserved, 0);
        assertRole(seatOf(run, nodes[0]).role, Runs.Role.Active);
    }

    function test_aHardAppealLostCostsPenaltyAndBond() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, true);
        appeal(0, ref);
        vote(1, ref, true);
        vm.expectEmit(address(runs));
        emit Runs.Revoked(run, nodes[0], ref.root, 0, 0, true, 100, PENALTY);
        vote(2, ref, true);
        assertStake(operators[0], STAKE - PENALTY - BOND, 0);
        assertEq(token.balanceOf(validators[0]), (PENALTY + BOND) / 5);
        assertEq(fundsOf(run).reserved, 0);
    }

    // ---- the jury ---------------------------------------------------------------------------------------------------

    function test_aVoteIsCountedAndTheQuorumDecidesAtOnce() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        appeal(0, ref);
        bytes32 id = runs.workId(run, ref);
        vm.expectEmit(address(runs));
        emit Runs.Voted(run, id, validators[1], true);
        vote(1, ref, true);
        assertEq(caseOf(ref).uphold, 1);
        assertTrue(runs.voted(id, validators[1]));
        assertState(ref, Runs.State.Appealed);
        vote(2, ref, true);
        assertState(ref, Runs.State.Revoked);
    }

    function test_onlyTheOtherSeatedValidatorsVoteAndOnlyOnce() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        appeal(0, ref);
        expectRefusal(Runs.Denied.selector);
        vote(0, ref, true); // the challenger
        vote(1, ref, true);
        expectRefusal(Runs.Denied.selector);
        vote(1, ref, true);
        expectRefusal(Runs.Denied.selector);
        vote(1, ref, false);
        enlist(run, validators[2], false);
        expectRefusal(Runs.Denied.selector);
        vote(2, ref, true);
        expectRefusal(Runs.Denied.selector);
        vm.prank(OWNER);
        runs.vote(run, ref, true);
    }

    function test_onlyAnAppealIsVotedOn() public {
        Runs.Ref memory ref = submit(0, 100);
        expectRefusal(Runs.WrongState.selector);
        vote(1, ref, true);
        challenge(0, ref, false);
        expectRefusal(Runs.WrongState.selector);
        vote(1, ref, true);
        convictBySilence(ref);
        expectRefusal(Runs.WrongState.selector);
        vote(1, ref, false);
    }

    function test_aLateVoteIsRefused() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        appeal(0, ref);
        pass(VOTE - 1);
        vote(1, ref, true);
        pass(1);
        expectRefusal(Runs.TooLate.selector);
        vote(2, ref, true);
    }

    function test_theSilenceOfTheJuryAcquits() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, true);
        appeal(0, ref);
        pass(VOTE);
        vm.prank(STRANGER);
        runs.settle(run, ref);
        assertState(ref, Runs.State.Cleared);
        assertEq(accountOf(operators[0]).active, STAKE);
        assertEq(runs.claim(run, nodes[0]), 100 * REWARD);
    }

    function test_aDividedJuryIsASilentOne() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, true);
        appeal(0, ref);
        vote(1, ref, true);
        vote(2, ref, false);
        assertState(ref, Runs.State.Appealed);
        pass(VOTE);
        runs.settle(run, ref);
        assertState(ref, Runs.State.Cleared);
    }

    function test_aValidatorWhoIsRemovedStillAnswersForItsChallenge() public {
        Runs.Ref memory ref = submit(0, 100);
        challenge(0, ref, false);
        approve(run, validators[0], false);
        assertStake(validators[0], STAKE, BOND);
        appeal(0, ref);
        decide(ref, false);
        assertStake(validators[0], STAKE - BOND, 0);
    }
}
