// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20Errors} from "@openzeppelin/contracts/interfaces/draft-IERC6093.sol";
import {Runs} from "../src/Runs.sol";
import {Base, Records} from "./support/Base.sol";

/// @notice create, fund, defund, pause, publish.
contract RunLifecycleTest is Base {
    bytes32 internal constant MANIFEST = keccak256("manifest of the second step");

    // ---- create -----------------------------------------------------------------------------------------------------

    function test_creationFixesPolicyAndSpec() public {
        Runs.Policy memory p = policy();
        p.gate = address(0x6A7E);
        vm.expectEmit(address(runs));
        emit Runs.RunCreated(run + 1, OWNER, SPEC, p);
        vm.prank(STRANGER); // anybody may create a run for anybody
        uint256 created = runs.create(p, SPEC);
        assertEq(created, run + 1);
        assertEq(runs.count(), created);
        assertEq(runs.specDigests(created), SPEC);
        assertEq(keccak256(abi.encode(runs.policy(created))), keccak256(abi.encode(p)));
        assertEq(runs.published(created), 0);
        assertFalse(runs.paused(created));
    }

    function _assertInvalid(Runs.Policy memory p) private {
        expectRefusal(Runs.InvalidPolicy.selector);
        runs.create(p, SPEC);
    }

    function test_aRunNeedsAnOwner() public {
        Runs.Policy memory p = policy();
        p.owner = address(0);
        _assertInvalid(p);
    }

    function test_aRunNeedsATrainer() public {
        Runs.Policy memory p = policy();
        p.trainer = address(0);
        _assertInvalid(p);
    }

    function test_aRunNeedsASpec() public {
        expectRefusal(Runs.InvalidPolicy.selector);
        runs.create(policy(), bytes32(0));
    }

    function test_aWindowHasAtLeastOneSecondForEachFifth() public {
        Runs.Policy memory p = policy();
        p.window = 4;
        _assertInvalid(p);
        p.window = 5;
        runs.create(p, SPEC);
    }

    function test_theFinderGetsAtMostHalf() public {
        Runs.Policy memory p = policy();
        p.finderBps = 5_001;
        _assertInvalid(p);
        p.finderBps = 5_000;
        runs.create(p, SPEC);
    }

    function test_aRunMustLetAUnitIn() public {
        Runs.Policy memory p = policy();
        p.maxUnits = 0;
        _assertInvalid(p);
    }

    function test_aRunMustLetASubmissionIn() public {
        Runs.Policy memory p = policy();
        p.maxPerStep = 0;
        _assertInvalid(p);
    }

    function test_stakeMustOutlastWindowAppealAndVote() public {
        Runs.Policy memory p = policy();
        p.vote = uint32(DELAY) - p.window - p.appeal;
        _assertInvalid(p);
        p.vote -= 1;
        runs.create(p, SPEC);
        p.appeal += 1;
        _assertInvalid(p);
        p.appeal -= 1;
        p.window += 1;
        _assertInvalid(p);
        (p.window, p.appeal, p.vote) = (type(uint32).max, type(uint32).max, type(uint32).max); // no wrap-around
        _assertInvalid(p);
    }

    function test_appealsNeedAQuorum() public {
        Runs.Policy memory p = policy();
        p.quorum = 0;
        _assertInvalid(p);
        p.appeal = 0;
        runs.create(p, SPEC);
    }

    function test_aRunTakesNoMoreThanASeatLocks() public {
        Runs.Policy memory p = policy();
        p.penalty = p.nodeStake - p.bond + 1;
        _assertInvalid(p);
        p.penalty -= 1;
        runs.create(p, SPEC);
        (p.penalty, p.bond) = (type(uint128).max, type(uint128).max); // no wrap-around
        _assertInvalid(p);
    }

    // ---- fund and defund --------------------------------------------------------------------------------------------

    function test_anybodyMayFundARun() public {
        token.transfer(STRANGER, 5 * MUR);
        vm.startPrank(STRANGER);
        token.approve(address(runs), 5 * MUR);
        vm.expectEmit(address(runs));
        emit Runs.Funded(run, int256(uint256(5 * MUR)));
        runs.fund(run, 5 * MUR);
        vm.stopPrank();
        assertEq(token.balanceOf(STRANGER), 0);
        assertEq(fundsOf(run).free, BUDGET + 5 * MUR);
        assertEq(token.balanceOf(address(runs)), BUDGET + 5 * MUR);
    }

    function test_aRunThatDoesNotExistTakesNoMoney() public {
        expectRefusal(Runs.NoSuchRun.selector);
        runs.fund(run + 1, MUR);
    }

    function test_fundingNeedsAnAllowance() public {
        vm.expectRevert(
            abi.encodeWithSelector(IERC20Errors.ERC20InsufficientAllowance.selector, address(runs), 0, 5 * MUR)
        );
        vm.prank(STRANGER);
        runs.fund(run, 5 * MUR);
    }

    function test_theOwnerTakesBackWhatIsFreeAndNoMore() public {
        submit(0, 500);
        uint128 free = BUDGET - 500 * REWARD;
        expectRefusal(Runs.Unfunded.selector, free, free + 1);
        vm.prank(OWNER);
        runs.defund(run, free + 1);

        vm.expectEmit(address(runs));
        emit Runs.Funded(run, -int256(uint256(free)));
        vm.prank(OWNER);
        runs.defund(run, free);
        assertEq(token.balanceOf(OWNER), free);
        assertEq(fundsOf(run).free, 0);
        assertEq(fundsOf(run).reserved, 500 * REWARD);
    }

    function test_oneRunCannotDrawOnAnother() public {
        uint256 other = runs.create(policy(), SPEC);
        expectRefusal(Runs.Unfunded.selector, 0, 1);
        vm.prank(OWNER);
        runs.defund(other, 1);
    }

    // ---- who may do what --------------------------------------------------------------------------------------------

    function test_onlyTheOwnerDefundsPausesBansAndApproves() public {
        address[2] memory others = [STRANGER, TRAINER];
        for (uint256 i; i < 2; ++i) {
            vm.startPrank(others[i]);
            expectRefusal(Runs.Denied.selector);
            runs.defund(run, 1);
            expectRefusal(Runs.Denied.selector);
            runs.pause(run, true);
            expectRefusal(Runs.Denied.selector);
            runs.ban(run, nodes[0]);
            expectRefusal(Runs.Denied.selector);
            runs.approve(run, others[i], true);
            vm.stopPrank();
        }
    }

    function test_pausingMayBeUndone() public {
        vm.expectEmit(address(runs));
        emit Runs.Paused(run, true);
        vm.prank(OWNER);
        runs.pause(run, true);
        assertTrue(runs.paused(run));
        vm.expectEmit(address(runs));
        emit Runs.Paused(run, false);
        vm.prank(OWNER);
        runs.pause(run, false);
        assertFalse(runs.paused(run));
        submit(0, 1);
    }

    function test_pausingStopsNeitherVerdictsNorPayNorPublication() public {
        Runs.Ref memory convicted = submit(0, 1);
        Runs.Ref memory appealed = submit(1, 1);
        submit(2, 1);
        vm.prank(OWNER);
        runs.pause(run, true);

        publish(run);
        challenge(0, convicted, false);
        challenge(0, appealed, false);
        appeal(1, appealed);
        vote(1, appealed, false);
        vote(2, appealed, false);
        pass(ripening(WINDOW));
        runs.settle(run, convicted);
        assertEq(runs.claim(run, nodes[2]), REWARD);
        leaveSeat(run, 2);
        vm.prank(operators[2]);
        bonds.unbond(STAKE);
    }

    // ---- publish ----------------------------------------------------------------------------------------------------

    function testFuzz_theBeaconIsTheHashOfTheLastBlockRunStepAndManifest(bytes32 last, bytes32 manifest) public {
        if (manifest == 0) manifest = MANIFEST;
        vm.roll(5_000);
        vm.setBlockhash(4_999, last);
        bytes32 beacon = keccak256(abi.encode(last, run, uint32(1), manifest));
        vm.expectEmit(address(runs));
        emit Runs.Published(run, 1, manifest, beacon);
        vm.prank(TRAINER);
        runs.publish(run, 1, manifest);

        Runs.Publication memory p = Records(address(runs)).publications(run, 1);
        assertEq(p.manifest, manifest);
        assertEq(p.beacon, beacon);
        assertEq(p.blockNumber, 5_000);
        assertEq(p.time, block.timestamp);
        assertEq(runs.published(run), 2);
    }

    function test_onlyTheTrainerPublishes() public {
        vm.roll(block.number + 1);
        expectRefusal(Runs.Denied.selector);
        vm.prank(OWNER);
        runs.publish(run, 1, MANIFEST);
        expectRefusal(Runs.Denied.selector);
        vm.prank(TRAINER);
        runs.publish(run + 1, 0, MANIFEST);
    }

    function test_stepsArePublishedOnceAndInOrder() public {
        vm.startPrank(TRAINER);
        expectRefusal(Runs.WrongStep.selector, 0, 1);
        runs.publish(run, 0, MANIFEST);
        expectRefusal(Runs.WrongStep.selector, 2, 1);
        runs.publish(run, 2, MANIFEST);
        runs.publish(run, 1, MANIFEST);
        vm.stopPrank();
        assertEq(Records(address(runs)).publications(run, 0).manifest, manifestOf(0));
    }

    function test_aPublicationHasAManifest() public {
        expectRefusal(Runs.WrongState.selector);
        vm.prank(TRAINER);
        runs.publish(run, 1, bytes32(0));
    }
}
