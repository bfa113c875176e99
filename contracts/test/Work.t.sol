// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ring} from "../src/Ring.sol";
import {Runs} from "../src/Runs.sol";
import {Base} from "./support/Base.sol";

/// @notice submit, submitMany, skip, workId. The fixture has published step 0; all nodes may work on it.
contract WorkTest is Base {
    bytes32 internal constant ROOT = keccak256("rollout file");
    bytes32 internal beacon; // of step 0

    function setUp() public override {
        super.setUp();
        beacon = beaconOf(run, 0);
    }

    function _ref(uint256 i, uint32 step, uint32 sequence) private view returns (Runs.Ref memory) {
        return Runs.Ref(nodes[i], step, sequence, ROOT);
    }

    function _skip(uint256 i, uint32 step, uint32 sequence, bytes32 beacon_) private {
        vm.prank(nodes[i]);
        runs.skip(run, step, sequence, beacon_);
    }

    function _items(uint256 n) private pure returns (Runs.Item[] memory items) {
        items = new Runs.Item[](n);
        for (uint256 i; i < n; ++i) {
            items[i] = Runs.Item(keccak256(abi.encode(i)), uint32(10 + i));
        }
    }

    function _submitMany(uint256 i, uint32 step, uint32 sequence, Runs.Item[] memory items) private {
        vm.prank(nodes[i]);
        runs.submitMany(run, step, sequence, beacon, items);
    }

    /// @dev submit, submitMany and skip must all refuse node `i`, and for the same reason.
    function _assertRefused(uint256 i, uint32 step, uint32 sequence, bytes32 beacon_, bytes memory refusal) private {
        Runs.Item[] memory items = _items(1);
        vm.startPrank(nodes[i]);
        vm.expectRevert(refusal);
        runs.submit(run, ROOT, step, sequence, 1, beacon_);
        vm.expectRevert(refusal);
        runs.submitMany(run, step, sequence, beacon_, items);
        vm.expectRevert(refusal);
        runs.skip(run, step, sequence, beacon_);
        vm.stopPrank();
    }

    function _wrongStep(uint256 step, uint256 expected) private pure returns (bytes memory) {
        return abi.encodeWithSelector(Runs.WrongStep.selector, step, expected);
    }

    function _wrongSequence(uint256 sequence, uint256 expected) private pure returns (bytes memory) {
        return abi.encodeWithSelector(Runs.WrongSequence.selector, sequence, expected);
    }

    function _denied() private pure returns (bytes memory) {
        return abi.encodeWithSelector(Runs.Denied.selector);
    }

    // ---- what a submission does -------------------------------------------------------------------------------------

    function test_aSubmissionIsRecordedAndItsPayReserved() public {
        vm.expectEmit(address(runs));
        emit Runs.Submitted(run, nodes[0], ROOT, 0, 0, 70);
        submit(_ref(0, 0, 0), 70, beacon);

        Runs.Work memory w = workOf(_ref(0, 0, 0));
        assertEq(w.time, block.timestamp);
        assertEq(w.units, 70);
        assertState(_ref(0, 0, 0), Runs.State.Submitted);
        assertEq(fundsOf(run).reserved, 70 * REWARD);
        assertEq(fundsOf(run).free, BUDGET - 70 * REWARD);
        assertUnits(0, 0, 70);
    }

    function test_manyAreRecordedLikeAsManySingleOnes() public {
        Runs.Item[] memory items = _items(3);
        submit(_ref(0, 0, 0), 5, beacon);
        for (uint32 i; i < 3; ++i) {
            vm.expectEmit(address(runs));
            emit Runs.Submitted(run, nodes[0], items[i].root, 0, 1 + i, 10 + i);
        }
        _submitMany(0, 0, 1, items);

        for (uint32 i; i < 3; ++i) {
            Runs.Ref memory ref = Runs.Ref(nodes[0], 0, 1 + i, items[i].root);
            assertState(ref, Runs.State.Submitted);
            assertEq(workOf(ref).time, block.timestamp);
            assertEq(workOf(ref).units, 10 + i);
        }
        assertEq(seatOf(run, nodes[0]).next, 4);
        assertEq(fundsOf(run).reserved, (5 + 10 + 11 + 12) * REWARD);
        assertUnits(0, 0, 5 + 10 + 11 + 12);
    }

    function test_ofManyAllOrNoneAreRecorded() public {
        Runs.Item[] memory items = _items(3);
        items[2].units = MAX_UNITS + 1;
        expectRefusal(Runs.InvalidUnits.selector, MAX_UNITS + 1, MAX_UNITS);
        _submitMany(0, 0, 0, items);
        assertState(Runs.Ref(nodes[0], 0, 0, items[0].root), Runs.State.None);
        assertEq(fundsOf(run).reserved, 0);
    }

    function test_aSkippedNumberIsUsedUpInTheOpen() public {
        vm.expectEmit(address(runs));
        emit Runs.Skipped(run, nodes[0], 0, 0);
        _skip(0, 0, 0, beacon);
        _assertRefused(0, 0, 0, beacon, _wrongSequence(0, 1));
        submit(_ref(0, 0, 1), 1, beacon);
    }

    function testFuzz_theIdOfAWorkIsTheHashOfRunAndRef(uint256 run_, Runs.Ref memory ref) public view {
        bytes32 id = keccak256(abi.encode(run_, ref.node, ref.step, ref.sequence, ref.root));
        assertEq(runs.workId(run_, ref), id);
    }

    // ---- sequence ---------------------------------------------------------------------------------------------------

    function test_sequenceNumbersAreUsedOnceAndInOrder() public {
        _assertRefused(0, 0, 1, beacon, _wrongSequence(1, 0));
        submit(_ref(0, 0, 0), 1, beacon);
        _assertRefused(0, 0, 0, beacon, _wrongSequence(0, 1));
        _assertRefused(0, 0, 2, beacon, _wrongSequence(2, 1));
        submit(_ref(0, 0, 1), 1, beacon);
    }

    function testFuzz_onlyTheNextNumberIsTaken(uint8 taken, uint32 sequence) public {
        taken = uint8(bound(taken, 0, MAX_PER_STEP - 1));
        _submitMany(0, 0, 0, _items(taken));
        if (sequence != taken) expectRefusal(Runs.WrongSequence.selector, sequence, taken);
        submit(_ref(0, 0, sequence), 1, beacon);
    }

    function test_aStepTakesSoManySubmissionsAndNoMore() public {
        _submitMany(0, 0, 0, _items(MAX_PER_STEP - 1));
        expectRefusal(Runs.WrongSequence.selector, MAX_PER_STEP, MAX_PER_STEP);
        _submitMany(0, 0, MAX_PER_STEP - 1, _items(2));
        _skip(0, 0, MAX_PER_STEP - 1, beacon);
        _assertRefused(0, 0, MAX_PER_STEP, beacon, _wrongSequence(MAX_PER_STEP, MAX_PER_STEP));
    }

    function test_eachNodeAndEachStepCountsFromZero() public {
        submit(_ref(0, 0, 0), 1, beacon);
        submit(_ref(1, 0, 0), 1, beacon);
        publish(run);
        submit(_ref(0, 1, 0), 1, beaconOf(run, 1));
        _assertRefused(1, 1, 1, beaconOf(run, 1), _wrongSequence(1, 0));
        submit(_ref(1, 1, 0), 1, beaconOf(run, 1));
    }

    function test_aStepLeftBehindIsNotReturnedTo() public {
        publish(run);
        submit(_ref(0, 1, 0), 1, beaconOf(run, 1)); // while step 0 is within its grace
        _assertRefused(0, 0, 0, beacon, _wrongStep(0, 1));
        submit(_ref(1, 0, 0), 1, beacon); // others may still
    }

    // ---- heads and beacons ------------------------------------------------------------------------------------------

    function test_thereIsNoWorkBeforeTheFirstPublication() public {
        run = open(policy());
        seat(run, 0);
        _assertRefused(0, 0, 0, beacon, _wrongStep(0, 0));
    }

    function test_thereIsNoWorkOnStepsToCome() public {
        _assertRefused(0, 1, 0, bytes32(0), _wrongStep(1, 1));
        _assertRefused(0, 7, 0, bytes32(0), _wrongStep(7, 1));
    }

    function test_theBeaconOfTheStepIsNeeded() public {
        bytes memory refusal = abi.encodeWithSelector(Runs.WrongBeacon.selector);
        _assertRefused(0, 0, 0, bytes32(0), refusal);
        _assertRefused(0, 0, 0, keccak256("the beacon before a reorg"), refusal);
        publish(run);
        _assertRefused(0, 0, 0, beaconOf(run, 1), refusal);
        _assertRefused(0, 1, 0, beacon, refusal);
        submit(_ref(0, 1, 0), 1, beaconOf(run, 1));
    }

    function test_aSupersededHeadTakesWorkWithinItsGrace() public {
        pass(5 days); // its own age does not matter
        publish(run);
        pass(GRACE - 1);
        submit(_ref(0, 0, 0), 1, beacon);
        submit(_ref(0, 1, 0), 1, beaconOf(run, 1));
    }

    function test_aSupersededHeadTakesNoWorkAfterItsGrace() public {
        publish(run);
        pass(GRACE);
        _assertRefused(0, 0, 0, beacon, _wrongStep(0, 1));
        publish(run);
        publish(run);
        _assertRefused(0, 0, 0, beacon, _wrongStep(0, 3));
        submit(_ref(0, 1, 0), 1, beaconOf(run, 1));
    }

    // ---- age of the seat --------------------------------------------------------------------------------------------

    /// @dev A key chosen after the beacon is known could be ground for work one likes.
    function test_aSeatTakenInTheBlockOfPublicationMayNotWorkOnIt() public {
        run = open(policy());
        publish(run);
        seat(run, 0);
        beacon = beaconOf(run, 0);
        _assertRefused(0, 0, 0, beacon, abi.encodeWithSelector(Runs.SeatTooYoung.selector, block.number, block.number));
        publish(run);
        submit(_ref(0, 1, 0), 1, beaconOf(run, 1));
    }

    function test_aSeatTakenAfterThePublicationMayNotWorkOnIt() public {
        uint256 published = block.number;
        vm.roll(published + 10);
        leaveSeat(run, 0);
        seat(run, 0); // a seat taken again is a new one
        _assertRefused(0, 0, 0, beacon, abi.encodeWithSelector(Runs.SeatTooYoung.selector, published + 10, published));
        publish(run);
        submit(_ref(0, 1, 0), 1, beaconOf(run, 1));
    }

    function test_aSeatTakenOneBlockBeforeThePublicationMayWorkOnIt() public {
        assertEq(seatOf(run, nodes[0]).since + 1, block.number);
        submit(_ref(0, 0, 0), 1, beacon);
    }

    // ---- who may work -----------------------------------------------------------------------------------------------

    function test_onlySeatedNodesWork() public {
        uint256 seated = run;
        run = open(policy());
        publish(run);
        _assertRefused(0, 0, 0, beaconOf(run, 0), _denied());
        run = seated;
        leaveSeat(run, 0);
        _assertRefused(0, 0, 0, beacon, _denied());
        vm.prank(OWNER);
        runs.ban(run, nodes[1]);
        _assertRefused(1, 0, 0, beacon, _denied());
    }

    function test_nobodyWorksWhileTheRunIsPaused() public {
        vm.prank(OWNER);
        runs.pause(run, true);
        _assertRefused(0, 0, 0, beacon, abi.encodeWithSelector(Runs.RunPaused.selector));
    }

    function test_aSeatWithAnOpenHardCaseDoesNotWork() public {
        Runs.Ref memory ref = submit(0, 1);
        challenge(0, ref, true);
        _assertRefused(0, 0, 1, beacon, abi.encodeWithSelector(Runs.CaseOpen.selector));
        appeal(0, ref);
        _assertRefused(0, 0, 1, beacon, abi.encodeWithSelector(Runs.CaseOpen.selector));
        vote(1, ref, false);
        vote(2, ref, false);
        submit(_ref(0, 0, 1), 1, beacon);
    }

    function test_aSeatWithAnOpenSoftCaseWorksOn() public {
        challenge(0, submit(0, 1), false);
        submit(_ref(0, 0, 1), 1, beacon);
    }

    // ---- units and money --------------------------------------------------------------------------------------------

    function test_aClaimIsOfOneUnitAtLeastAndMaxUnitsAtMost() public {
        expectRefusal(Runs.InvalidUnits.selector, 0, MAX_UNITS);
        submit(_ref(0, 0, 0), 0, beacon);
        expectRefusal(Runs.InvalidUnits.selector, MAX_UNITS + 1, MAX_UNITS);
        submit(_ref(0, 0, 0), MAX_UNITS + 1, beacon);
        submit(_ref(0, 0, 0), 1, beacon);
        submit(_ref(0, 0, 1), MAX_UNITS, beacon);
    }

    function test_workThatCannotBePaidIsRefused() public {
        vm.prank(OWNER);
        runs.defund(run, BUDGET - 10 * REWARD);
        expectRefusal(Runs.Unfunded.selector, 10 * REWARD, 11 * REWARD);
        submit(_ref(0, 0, 0), 11, beacon);
        submit(_ref(0, 0, 0), 10, beacon);
        expectRefusal(Runs.Unfunded.selector, 0, REWARD); // what is reserved pays for nothing else
        submit(_ref(1, 0, 0), 1, beacon);
    }

    function test_anEpochOfASeatHoldsThirtyTwoBitsOfUnits() public {
        Runs.Policy memory p = policy();
        p.maxUnits = type(uint32).max;
        p.reward = 1;
        switchTo(p);
        beacon = beaconOf(run, 0);
        submit(_ref(0, 0, 0), type(uint32).max, beacon);
        expectRefusal(Ring.RingFull.selector);
        submit(_ref(0, 0, 1), 1, beacon);
        pass(WINDOW / 5);
        submit(_ref(0, 0, 1), type(uint32).max, beacon);
    }

    // ---- theft ------------------------------------------------------------------------------------------------------

    /// @dev The thief sees the root on its way and commits to it first. The owner's work is neither blocked nor his.
    function test_aRootSeenInTheMempoolAndSubmittedByAnotherFirstHurtsNobody() public {
        submit(_ref(1, 0, 0), 70, beacon);
        submit(_ref(0, 0, 0), 70, beacon);
        assertNotEq(runs.workId(run, _ref(0, 0, 0)), runs.workId(run, _ref(1, 0, 0)));

        challenge(0, _ref(1, 0, 0), true);
        pass(APPEAL);
        runs.settle(run, _ref(1, 0, 0));
        assertState(_ref(1, 0, 0), Runs.State.Revoked);
        assertState(_ref(0, 0, 0), Runs.State.Submitted);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[1]), 0);
        assertEq(runs.claim(run, nodes[0]), 70 * REWARD);
    }

    function test_theSameFileInAnotherRunIsAnotherWork() public {
        submit(_ref(0, 0, 0), 70, beacon);
        uint256 first = run;
        switchTo(policy());
        submit(_ref(0, 0, 0), 30, beaconOf(run, 0));
        assertEq(workOf(_ref(0, 0, 0)).units, 30);
        run = first;
        assertEq(workOf(_ref(0, 0, 0)).units, 70);
    }
}
