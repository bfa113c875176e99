// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Bonds} from "../src/Bonds.sol";
import {Runs} from "../src/Runs.sol";
import {Base} from "./support/Base.sol";

/// @notice A contract wallet (ERC-1271) that has approved a single digest.
contract Wallet {
    bytes32 internal immutable approved;

    constructor(bytes32 digest) {
        approved = digest;
    }

    function isValidSignature(bytes32 digest, bytes calldata) external view returns (bytes4) {
        return digest == approved ? this.isValidSignature.selector : bytes4(0);
    }
}

/// @notice join, leave, ban, approve, enlist. Most tests seat node 0 in `empty`, a run without seats.
contract SeatsTest is Base {
    uint256 internal constant GATE_KEY = 0x6A7E;
    uint256 internal empty;

    function setUp() public override {
        super.setUp();
        empty = open(policy());
    }

    function _gated() private returns (uint256) {
        Runs.Policy memory p = policy();
        p.gate = vm.addr(GATE_KEY);
        return open(p);
    }

    function _assertRefused(Consent memory c, bytes memory nodeSig, bytes memory gateSig, bytes4 refusal) private {
        expectRefusal(refusal);
        join(c, nodeSig, gateSig);
    }

    /// @dev Submits work in a run where the node is not allowed to.
    function _assertCannotWork(address node) private {
        Runs.Ref memory ref = nextRef(run, node);
        bytes32 beacon = beaconOf(run, ref.step);
        expectRefusal(Runs.Denied.selector);
        submit(ref, 1, beacon);
    }

    function _locked(address account) private view returns (uint128) {
        return accountOf(account).locked;
    }

    function _ban(uint256 run_, address node) private {
        vm.prank(OWNER);
        runs.ban(run_, node);
    }

    // ---- join: consent ----------------------------------------------------------------------------------------------

    function test_aNodeIsSeatedWithItsConsentAndItsOperatorsStake() public {
        uint128 before = _locked(operators[0]);
        Consent memory c = consentOf(empty, 0);
        bytes memory sig = signConsent(c, keys[0]);
        vm.expectEmit(address(runs));
        emit Runs.Joined(empty, c.node, c.operator, c.peer, c.hardware);
        join(c, sig, "");

        Runs.Seat memory s = seatOf(empty, nodes[0]);
        assertEq(s.operator, operators[0]);
        assertRole(s.role, Runs.Role.Active);
        assertEq(s.hardware, c.hardware);
        assertEq(s.since, block.number);
        assertEq(_locked(operators[0]) - before, NODE_STAKE);
    }

    function test_onlyTheNodeItselfConsents() public {
        Consent memory c = consentOf(empty, 0);
        _assertRefused(c, signConsent(c, keys[1]), "", Runs.Denied.selector);
        _assertRefused(c, "", "", Runs.Denied.selector);
    }

    /// @dev Somebody who sees a consent on its way cannot use it for himself.
    function test_aConsentIsOnlyForTheOperatorItNames() public {
        Consent memory c = consentOf(empty, 0);
        bytes memory sig = signConsent(c, keys[0]);
        c.operator = operators[1];
        _assertRefused(c, sig, "", Runs.Denied.selector);
    }

    function test_aConsentIsOnlyForThePeerHardwareAndDeadlineItNames() public {
        Consent memory c = consentOf(empty, 0);
        bytes memory sig = signConsent(c, keys[0]);
        c.peer = peerOf(nodes[1]);
        _assertRefused(c, sig, "", Runs.Denied.selector);
        c = consentOf(empty, 0);
        c.hardware += 1;
        _assertRefused(c, sig, "", Runs.Denied.selector);
        c = consentOf(empty, 0);
        c.deadline += 1;
        _assertRefused(c, sig, "", Runs.Denied.selector);
        join(consentOf(empty, 0), sig, "");
    }

    function test_aConsentIsOnlyForTheNodeItNames() public {
        Consent memory c = consentOf(empty, 0);
        bytes memory sig = signConsent(c, keys[0]);
        c.node = nodes[1];
        _assertRefused(c, sig, "", Runs.Denied.selector);
    }

    function test_aConsentToOneRunIsNoneToAnother() public {
        Consent memory c = consentOf(empty, 0);
        bytes memory sig = signConsent(c, keys[0]);
        c.run = open(policy());
        _assertRefused(c, sig, "", Runs.Denied.selector);
    }

    function test_aConsentOnAnotherChainIsNoneHere() public {
        Consent memory c = consentOf(empty, 0);
        uint256 here = block.chainid;
        vm.chainId(84_532);
        bytes memory sig = signConsent(c, keys[0]);
        vm.chainId(here);
        _assertRefused(c, sig, "", Runs.Denied.selector);
    }

    function test_aConsentToAnotherContractIsNoneHere() public {
        Runs original = runs;
        runs = new Runs(token, DELAY, SINK); // signs for this one
        bytes memory sig = signConsent(consentOf(empty, 0), keys[0]);
        runs = original;
        _assertRefused(consentOf(empty, 0), sig, "", Runs.Denied.selector);
    }

    function test_aConsentExpires() public {
        Consent memory c = consentOf(empty, 0);
        bytes memory sig = signConsent(c, keys[0]);
        vm.warp(c.deadline + 1);
        _assertRefused(c, sig, "", Runs.TooLate.selector);
        vm.warp(c.deadline);
        join(c, sig, "");
    }

    // ---- join: state ------------------------------------------------------------------------------------------------

    function test_nobodyJoinsARunThatDoesNotExist() public {
        Consent memory c = consentOf(empty + 1, 0);
        _assertRefused(c, signConsent(c, keys[0]), "", Runs.NoSuchRun.selector);
    }

    function test_aSeatIsTakenOnce() public {
        seat(empty, 0);
        Consent memory c = consentOf(empty, 0);
        _assertRefused(c, signConsent(c, keys[0]), "", Runs.WrongState.selector);
        c.operator = operators[1];
        _assertRefused(c, signConsent(c, keys[0]), "", Runs.WrongState.selector);
    }

    function test_aSeatNeedsStakeThatBacksNothingElse() public {
        vm.prank(operators[0]);
        bonds.unbond(STAKE - NODE_STAKE - (NODE_STAKE - 1)); // one unit short of a second seat
        Consent memory c = consentOf(empty, 0);
        bytes memory sig = signConsent(c, keys[0]);
        expectRefusal(Bonds.InsufficientStake.selector, NODE_STAKE - 1, NODE_STAKE);
        join(c, sig, "");
        vm.prank(operators[0]);
        bonds.rebond(1);
        join(c, sig, "");
    }

    function test_aSeatMayBeTakenAgainByItsOperator() public {
        submit(0, 5);
        leaveSeat(run, 0);
        vm.roll(block.number + 1);
        Consent memory c = consentOf(run, 0);
        c.hardware = 7;
        join(c, signConsent(c, keys[0]), "");
        Runs.Seat memory s = seatOf(run, nodes[0]);
        assertRole(s.role, Runs.Role.Active);
        assertEq(s.hardware, 7);
        assertEq(s.since, block.number);
        assertEq(s.next, 1); // sequence numbers are not given out a second time
        assertUnits(0, 0, 5);
    }

    /// @dev Otherwise a hot key could move rewards that have not been claimed to another operator.
    function test_aSeatLeftIsNotHandedToAnotherOperator() public {
        submit(0, 5);
        leaveSeat(run, 0);
        Consent memory c = consentOf(run, 0);
        c.operator = operators[1];
        _assertRefused(c, signConsent(c, keys[0]), "", Runs.Denied.selector);
    }

    // ---- join: gate -------------------------------------------------------------------------------------------------

    function test_aGatedRunSeatsTheInvited() public {
        Consent memory c = consentOf(_gated(), 0);
        bytes memory sig = signConsent(c, keys[0]);
        join(c, sig, sign(invite(c.run, c.node, c.deadline), GATE_KEY));
        assertRole(seatOf(c.run, c.node).role, Runs.Role.Active);
    }

    function test_aGatedRunSeatsNobodyElse() public {
        Consent memory c = consentOf(_gated(), 0);
        bytes memory sig = signConsent(c, keys[0]);
        _assertRefused(c, sig, "", Runs.Denied.selector);
        _assertRefused(c, sig, sign(invite(c.run, c.node, c.deadline), keys[0]), Runs.Denied.selector);
        _assertRefused(c, sig, sign(invite(c.run, nodes[1], c.deadline), GATE_KEY), Runs.Denied.selector);
        _assertRefused(c, sig, sign(invite(c.run, c.node, c.deadline - 1), GATE_KEY), Runs.Denied.selector);
        _assertRefused(c, sig, sign(invite(_gated(), c.node, c.deadline), GATE_KEY), Runs.Denied.selector);
    }

    function test_anInvitationIsNoConsent() public {
        Consent memory c = consentOf(_gated(), 0);
        bytes memory invited = sign(invite(c.run, c.node, c.deadline), GATE_KEY);
        _assertRefused(c, invited, invited, Runs.Denied.selector);
        _assertRefused(c, sign(invite(c.run, c.node, c.deadline), keys[0]), invited, Runs.Denied.selector);
    }

    function test_aContractWalletMayBeTheGate() public {
        uint256 gated = runs.count() + 1;
        uint256 deadline = block.timestamp + 1 hours;
        Runs.Policy memory p = policy();
        p.gate = address(new Wallet(typed(invite(gated, nodes[0], deadline))));
        open(p);
        seat(gated, 0);
        Consent memory c = consentOf(gated, 1);
        _assertRefused(c, signConsent(c, keys[1]), "", Runs.Denied.selector);
    }

    // ---- leave ------------------------------------------------------------------------------------------------------

    function test_leavingUnlocksTheStakeAndEndsTheWork() public {
        uint128 before = _locked(operators[0]);
        vm.expectEmit(address(runs));
        emit Runs.Left(run, nodes[0], Runs.Role.Left);
        leaveSeat(run, 0);
        assertRole(seatOf(run, nodes[0]).role, Runs.Role.Left);
        assertEq(before - _locked(operators[0]), NODE_STAKE);
        _assertCannotWork(nodes[0]);
    }

    function test_onlyTheOperatorLeaves() public {
        expectRefusal(Runs.Denied.selector);
        _leaveAs(nodes[0], nodes[0]);
        expectRefusal(Runs.Denied.selector);
        _leaveAs(operators[1], nodes[0]);
        expectRefusal(Runs.Denied.selector);
        _leaveAs(OWNER, nodes[0]);
    }

    function _leaveAs(address caller, address node) private {
        vm.prank(caller);
        runs.leave(run, node);
    }

    function test_onlyASeatedNodeLeaves() public {
        expectRefusal(Runs.WrongState.selector);
        leaveSeat(empty, 0);
        leaveSeat(run, 0);
        expectRefusal(Runs.WrongState.selector);
        leaveSeat(run, 0);
        _ban(run, nodes[1]);
        expectRefusal(Runs.WrongState.selector);
        leaveSeat(run, 1);
    }

    // ---- ban --------------------------------------------------------------------------------------------------------

    function test_aBannedNodeStopsWorkingButKeepsItsStakeAndItsPay() public {
        submit(0, 5);
        uint128 before = _locked(operators[0]);
        vm.expectEmit(address(runs));
        emit Runs.Left(run, nodes[0], Runs.Role.Banned);
        _ban(run, nodes[0]);
        assertRole(seatOf(run, nodes[0]).role, Runs.Role.Banned);
        assertEq(before - _locked(operators[0]), NODE_STAKE);
        assertEq(accountOf(operators[0]).active, STAKE);
        _assertCannotWork(nodes[0]);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, nodes[0]), 5 * REWARD);
    }

    function test_aBannedNodeDoesNotReturn() public {
        _ban(run, nodes[0]);
        Consent memory c = consentOf(run, 0);
        _assertRefused(c, signConsent(c, keys[0]), "", Runs.WrongState.selector);
    }

    function test_aNodeMayBeBannedBeforeItComes() public {
        _ban(empty, nodes[0]);
        Consent memory c = consentOf(empty, 0);
        _assertRefused(c, signConsent(c, keys[0]), "", Runs.WrongState.selector);
    }

    function test_aBanUnlocksASeatsStakeOnce() public {
        seat(empty, 0); // a second lock that must survive
        leaveSeat(run, 0);
        _ban(run, nodes[0]);
        _ban(run, nodes[0]);
        assertEq(_locked(operators[0]), NODE_STAKE);
    }

    function test_aBanIsAnnouncedOnce() public {
        _ban(run, nodes[0]);
        vm.recordLogs();
        _ban(run, nodes[0]);
        assertEq(vm.getRecordedLogs().length, 0);
    }

    function test_aBanInOneRunIsNoneInAnother() public {
        seat(empty, 0);
        _ban(run, nodes[0]);
        assertRole(seatOf(empty, nodes[0]).role, Runs.Role.Active);
        assertEq(_locked(operators[0]), NODE_STAKE);
    }

    // ---- validators -------------------------------------------------------------------------------------------------

    function _roleOf(uint256 run_, address validator) private view returns (Runs.Role) {
        return runs.validators(run_, validator);
    }

    function test_anApprovedValidatorEnlistsWithStake() public {
        uint128 before = _locked(validators[0]);
        vm.expectEmit(address(runs));
        emit Runs.ValidatorApproved(empty, validators[0], true);
        approve(empty, validators[0], true);
        assertRole(_roleOf(empty, validators[0]), Runs.Role.Left);
        assertEq(_locked(validators[0]), before);

        vm.expectEmit(address(runs));
        emit Runs.ValidatorSeated(empty, validators[0], true);
        enlist(empty, validators[0], true);
        assertRole(_roleOf(empty, validators[0]), Runs.Role.Active);
        assertEq(_locked(validators[0]) - before, VALIDATOR_STAKE);
    }

    function test_onlyTheApprovedEnlist() public {
        expectRefusal(Runs.WrongState.selector);
        enlist(empty, validators[0], true);
        expectRefusal(Runs.WrongState.selector);
        enlist(empty, validators[0], false);
    }

    function test_aValidatorEnlistsOnce() public {
        expectRefusal(Runs.WrongState.selector);
        enlist(run, validators[0], true);
        assertEq(_locked(validators[0]), VALIDATOR_STAKE);
    }

    function test_enlistingNeedsStakeThatBacksNothingElse() public {
        vm.prank(validators[0]);
        bonds.unbond(STAKE - VALIDATOR_STAKE - (VALIDATOR_STAKE - 1));
        approve(empty, validators[0], true);
        expectRefusal(Bonds.InsufficientStake.selector, VALIDATOR_STAKE - 1, VALIDATOR_STAKE);
        enlist(empty, validators[0], true);
    }

    function test_aValidatorMayResignAndReturn() public {
        vm.expectEmit(address(runs));
        emit Runs.ValidatorSeated(run, validators[0], false);
        enlist(run, validators[0], false);
        assertRole(_roleOf(run, validators[0]), Runs.Role.Left);
        assertEq(_locked(validators[0]), 0);
        expectRefusal(Runs.WrongState.selector);
        enlist(run, validators[0], false);
        enlist(run, validators[0], true);
        assertEq(_locked(validators[0]), VALIDATOR_STAKE);
    }

    function test_approvalMayBeWithdrawnAndTheStakeIsFree() public {
        vm.expectEmit(address(runs));
        emit Runs.ValidatorApproved(run, validators[0], false);
        approve(run, validators[0], false);
        assertRole(_roleOf(run, validators[0]), Runs.Role.None);
        assertEq(_locked(validators[0]), 0);
        expectRefusal(Runs.WrongState.selector);
        enlist(run, validators[0], true);
    }

    function test_withdrawingApprovalUnlocksASeatsStakeOnce() public {
        approve(empty, validators[0], true);
        enlist(empty, validators[0], true); // a second lock that must survive
        enlist(run, validators[0], false);
        approve(run, validators[0], false);
        approve(run, validators[0], false);
        assertEq(_locked(validators[0]), VALIDATOR_STAKE);
    }

    function test_approvingTwiceDoesNotUnseat() public {
        approve(run, validators[0], true);
        assertRole(_roleOf(run, validators[0]), Runs.Role.Active);
        assertEq(_locked(validators[0]), VALIDATOR_STAKE);
    }
}
