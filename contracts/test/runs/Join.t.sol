// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, InsufficientStake, NoSuchRun, TooLate, WrongState} from "../../src/interfaces/Errors.sol";
import {Wallet} from "../support/Wallet.sol";
import {World} from "../support/World.sol";

contract JoinTest is World {
    uint256 internal constant GATE_KEY = 0x6A7E;
    uint256 internal other; // a run without seats

    function setUp() public override {
        super.setUp();
        other = open(policy());
    }

    function test_join_locks_the_stake_and_seats_the_node() public {
        Consent memory c = consentOf(other, 0);
        bytes memory signature = signConsent(c, keys[0]);
        uint128 locked = bonds.accounts(operators[0]).locked;
        vm.expectEmit(address(runs));
        emit IRuns.Joined(other, nodes[0], operators[0], c.peer, 3);
        join(c, signature, "");
        IRuns.Seat memory s = runs.seats(other, nodes[0]);
        assertEq(s.operator, operators[0]);
        assertEq(uint256(s.role), uint256(IRuns.Role.Active));
        assertEq(s.hardware, 3);
        assertEq(s.since, block.number);
        assertEq(s.locked, NODE_STAKE);
        assertEq(s.worth, uint256(NODE_STAKE) / REWARD);
        assertEq(bonds.accounts(operators[0]).locked, locked + NODE_STAKE);
    }

    function test_zero_stake_seats_nobody() public {
        Consent memory c = consentOf(other, 0);
        c.operator = STRANGER;
        bytes memory signature = signConsent(c, keys[0]);
        vm.prank(STRANGER);
        expectRefusal(InsufficientStake.selector, 0, NODE_STAKE);
        runs.join(other, c.node, c.peer, c.hardware, c.deadline, signature, "");
    }

    function test_no_such_run() public {
        refused(consentOf(9, 0), "", abi.encodeWithSelector(NoSuchRun.selector, 9));
    }

    function test_expired_consent() public {
        Consent memory c = consentOf(other, 0);
        bytes memory signature = signConsent(c, keys[0]);
        vm.warp(c.deadline);
        uint256 snapshot = vm.snapshotState();
        join(c, signature, ""); // the last moment counts
        vm.revertToState(snapshot);
        vm.warp(c.deadline + 1);
        refused(c, signature, abi.encodeWithSelector(TooLate.selector, c.deadline));
    }

    /// @dev Consent to anything but exactly this call is none.
    function test_consent_cannot_be_replayed() public {
        Consent memory c = consentOf(other, 0);
        bytes memory denied = abi.encodeWithSelector(Denied.selector, nodes[0]);
        bytes memory good = signConsent(c, keys[0]);

        c.operator = operators[1];
        refused(c, good, denied); // by another operator
        c = consentOf(other, 0);
        c.hardware = 4;
        refused(c, good, denied); // for another class
        c = consentOf(other, 0);
        c.peer = peerOf(nodes[1]);
        refused(c, good, denied); // for another PeerID
        c = consentOf(other, 0);
        c.deadline += 1;
        refused(c, good, denied); // for longer
        c = consentOf(run, 0);
        bytes memory elsewhere = signConsent(c, keys[0]);
        refused(consentOf(other, 0), elsewhere, denied); // from another run
        refused(consentOf(other, 0), signConsent(consentOf(other, 0), keys[1]), denied); // by another key
        refused(consentOf(other, 0), "", denied);

        vm.chainId(8453);
        bytes memory base = signConsent(consentOf(other, 0), keys[0]);
        vm.chainId(31337);
        refused(consentOf(other, 0), base, denied); // from another chain
        join(consentOf(other, 0), good, "");
    }

    function test_a_signature_follows_the_chain_when_it_forks() public {
        vm.chainId(99);
        seat(other, 0);
    }

    function test_the_mirrored_signature_is_refused() public {
        Consent memory c = consentOf(other, 0);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(keys[0], typed(consentHash(c)));
        uint256 n = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        bytes memory mirrored = abi.encodePacked(r, bytes32(n - uint256(s)), v == 27 ? uint8(28) : uint8(27));
        refused(c, mirrored, abi.encodeWithSelector(Denied.selector, nodes[0]));
    }

    function test_nobody_takes_a_seat_that_is_anothers() public {
        Consent memory c = consentOf(run, 0);
        c.operator = operators[1];
        bytes memory signature = signConsent(c, keys[0]); // the node itself may have defected
        refused(c, signature, abi.encodeWithSelector(Denied.selector, operators[1]));
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        refused(c, signature, abi.encodeWithSelector(Denied.selector, operators[1]));
    }

    function test_who_left_may_come_back_and_locks_nothing_twice() public {
        vm.prank(operators[0]);
        runs.leave(run, nodes[0]);
        uint128 locked = bonds.accounts(operators[0]).locked;
        pass(1);
        seat(run, 0);
        assertEq(bonds.accounts(operators[0]).locked, locked);
        IRuns.Seat memory s = runs.seats(run, nodes[0]);
        assertEq(s.until, 0);
        assertEq(s.since, block.number);
        publish(run);
        submit(0, 1);
    }

    function test_joining_again_renews_stake_and_hardware() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        challenge(0, ref);
        pass(APPEAL);
        settle(0, 1);
        assertEq(runs.seats(run, nodes[0]).locked, NODE_STAKE - FEE);
        Consent memory c = consentOf(run, 0);
        c.hardware = 7;
        join(c, signConsent(c, keys[0]), "");
        IRuns.Seat memory s = runs.seats(run, nodes[0]);
        assertEq(s.locked, NODE_STAKE);
        assertEq(s.worth, uint256(NODE_STAKE) / REWARD);
        assertEq(s.hardware, 7);
        assertEq(s.since, block.number); // and works from the next weights on
    }

    function test_the_banned_stay_out() public {
        vm.prank(OWNER);
        runs.ban(run, nodes[0]);
        Consent memory c = consentOf(run, 0);
        refused(c, signConsent(c, keys[0]), abi.encodeWithSelector(WrongState.selector));
    }

    function test_a_gate_invites() public {
        gated(vm.addr(GATE_KEY));
        Consent memory c = consentOf(other, 0);
        bytes memory consent = signConsent(c, keys[0]);
        bytes memory invitationTo0 = sign(invitation(other, nodes[0], c.deadline), GATE_KEY);
        bytes memory denied = abi.encodeWithSelector(Denied.selector, vm.addr(GATE_KEY));
        refused(c, consent, "", denied);
        refused(c, consent, sign(invitation(other, nodes[1], c.deadline), GATE_KEY), denied);
        refused(c, consent, sign(invitation(run, nodes[0], c.deadline), GATE_KEY), denied);
        refused(c, consent, sign(invitation(other, nodes[0], c.deadline + 1), GATE_KEY), denied);
        refused(c, consent, sign(invitation(other, nodes[0], c.deadline), keys[0]), denied);
        join(c, consent, invitationTo0);
    }

    function test_a_contract_may_be_the_gate() public {
        Wallet wallet = new Wallet();
        gated(address(wallet));
        Consent memory c = consentOf(other, 0);
        bytes memory consent = signConsent(c, keys[0]);
        refused(c, consent, "", abi.encodeWithSelector(Denied.selector, address(wallet)));
        wallet.sign(typed(invitation(other, nodes[0], c.deadline)));
        join(c, consent, "");
    }

    function test_a_contract_is_no_node() public {
        Wallet wallet = new Wallet();
        Consent memory c = consentOf(other, 0);
        c.node = address(wallet);
        wallet.sign(typed(consentHash(c)));
        refused(c, "", abi.encodeWithSelector(Denied.selector, address(wallet)));
        c.node = address(0); // what failed recovery answers
        refused(c, "", abi.encodeWithSelector(Denied.selector, address(0)));
    }

    function gated(address gate) internal {
        IPolicies.Policy memory p = policy();
        p.gate = gate;
        other = open(p);
    }

    function refused(Consent memory c, bytes memory nodeSig, bytes memory why) internal {
        refused(c, nodeSig, "", why);
    }

    function refused(Consent memory c, bytes memory nodeSig, bytes memory gateSig, bytes memory why) internal {
        vm.prank(c.operator);
        vm.expectRevert(why);
        runs.join(c.run, c.node, c.peer, c.hardware, c.deadline, nodeSig, gateSig);
    }
}
