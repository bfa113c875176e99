// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, TooLate, WrongState} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract RotateTest is World {
    uint256 internal constant SECOND = 0x5EC0;
    uint256 internal constant THIRD = 0x7419;
    address internal second = vm.addr(SECOND);
    address internal third = vm.addr(THIRD);

    function test_the_new_key_works_from_the_next_weights_on_and_the_old_never_more() public {
        rotate(nodes[0], SECOND);
        assertEq(runs.seatOf(run, second), nodes[0]);
        assertEq(runs.seats(run, second).key, second);
        assertEq(runs.seats(run, second).since, block.number);
        refusedSubmission(second, IRuns.SeatTooYoung.selector, runs.seats(run, second).since, block.number);
        publish(run);
        submitNext(second);
        refusedSubmission(nodes[0]);
    }

    function test_a_key_rotated_out_of_a_rotated_seat_works_no_more() public {
        rotate(nodes[0], SECOND);
        rotate(second, THIRD);
        publish(run);
        assertEq(runs.seatOf(run, third), nodes[0]);
        submitNext(third);
        refusedSubmission(second);
        refusedSubmission(nodes[0]);
    }

    function test_old_work_is_judged_and_paid_under_its_old_name() public {
        IRuns.SubmissionRef memory bad = submit(0, 100);
        submit(0, 10);
        rotate(nodes[0], SECOND);
        publish(run);
        IRuns.SubmissionRef memory fresh = submitNext(second);
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](2);
        (list[0], list[1]) = (bad, fresh);
        uint256 number = challenge(0, list); // submissions of both keys are submissions of one seat
        assertEq(court.cases(run, nodes[0], number).submissions, 2);
        vm.prank(second); // the present key speaks for the seat
        court.appeal(run, nodes[0], number);
        poll(0, number, true);
        assertState(bad, ICourt.State.Revoked);
        assertState(fresh, ICourt.State.Revoked);
        pass(ripening(WINDOW));
        assertEq(runs.claim(run, second), 10 * uint256(REWARD));
        assertEq(token.balanceOf(operators[0]), 10 * uint256(REWARD));
    }

    function test_a_retired_key_cannot_appeal() public {
        IRuns.SubmissionRef memory ref = submit(0, 100);
        rotate(nodes[0], SECOND);
        uint256 number = challenge(0, ref);
        vm.prank(nodes[0]);
        expectRefusal(IBench.NotOnBench.selector, nodes[0]);
        court.appeal(run, nodes[0], number);
    }

    function test_the_new_key_must_consent_to_exactly_this() public {
        Consent memory c = consentOf(run, 0);
        (c.node, c.peer) = (second, peerOf(second));
        bytes memory denied = abi.encodeWithSelector(Denied.selector, second);
        refused(c, signConsent(c, keys[0]), denied);
        c.hardware = 4; // not the seat's
        refused(c, signConsent(c, SECOND), denied);
        c.hardware = 3;
        c.run = run + 1;
        refused(c, signConsent(c, SECOND), denied);
        c.run = run;
        bytes memory late = signConsent(c, SECOND);
        vm.warp(c.deadline + 1);
        refused(c, late, abi.encodeWithSelector(TooLate.selector, c.deadline));
    }

    function test_only_the_operator_rotates() public {
        Consent memory c = consentOf(run, 0);
        (c.node, c.peer, c.operator) = (second, peerOf(second), operators[1]);
        refused(c, signConsent(c, SECOND), abi.encodeWithSelector(Denied.selector, operators[1]));
    }

    function test_a_key_serves_one_seat_of_a_run_ever() public {
        Consent memory c = consentOf(run, 0);
        (c.node, c.peer) = (nodes[1], peerOf(nodes[1]));
        refused(c, signConsent(c, keys[1]), abi.encodeWithSelector(WrongState.selector));
        rotate(nodes[0], SECOND);
        rotate(second, THIRD);
        (c.node, c.peer) = (second, peerOf(second));
        refused(c, signConsent(c, SECOND), abi.encodeWithSelector(WrongState.selector));
        c.operator = operators[1]; // nor does it found another
        bytes memory signature = signConsent(c, SECOND);
        vm.prank(operators[1]);
        expectRefusal(Denied.selector, operators[1]);
        runs.join(run, second, c.peer, 3, c.deadline, signature, "");
    }

    function test_a_rotated_seat_comes_back_with_its_present_key_only() public {
        rotate(nodes[0], SECOND);
        vm.prank(operators[0]);
        runs.leave(run, second);
        Consent memory c = consentOf(run, 0);
        bytes memory old = signConsent(c, keys[0]);
        vm.prank(operators[0]);
        expectRefusal(Denied.selector, nodes[0]);
        runs.join(run, nodes[0], c.peer, 3, c.deadline, old, "");
        (c.node, c.peer) = (second, peerOf(second));
        join(c, signConsent(c, SECOND), "");
        publish(run);
        submitNext(second);
    }

    function test_every_key_of_a_seat_names_it() public {
        rotate(nodes[0], SECOND);
        rotate(second, THIRD);
        bytes32 seat_ = keccak256(abi.encode(runs.seats(run, nodes[0])));
        assertEq(keccak256(abi.encode(runs.seats(run, second))), seat_);
        assertEq(keccak256(abi.encode(runs.seats(run, third))), seat_);
    }

    function rotate(address node, uint256 key) internal {
        Consent memory c = consentOf(run, 0);
        (c.node, c.peer) = (vm.addr(key), peerOf(vm.addr(key)));
        bytes memory signature = signConsent(c, key);
        vm.prank(operators[0]);
        vm.expectEmit(address(runs));
        emit IRuns.Rotated(run, c.node, nodes[0], c.peer);
        runs.rotate(run, node, c.node, c.peer, c.deadline, signature);
    }

    function refused(Consent memory c, bytes memory signature, bytes memory why) internal {
        vm.prank(c.operator);
        vm.expectRevert(why);
        runs.rotate(run, nodes[0], c.node, c.peer, c.deadline, signature);
    }

    function submitNext(address node) internal returns (IRuns.SubmissionRef memory ref) {
        ref = nextRef(run, node);
        submit(ref, 100, beaconOf(run, ref.step));
    }

    function refusedSubmission(address node) internal {
        IRuns.SubmissionRef memory ref = nextRef(run, node);
        bytes32 beacon = beaconOf(run, ref.step);
        vm.prank(node);
        expectRefusal(Denied.selector, node);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
    }

    function refusedSubmission(address node, bytes4 why, uint256 since, uint256) internal {
        IRuns.SubmissionRef memory ref = nextRef(run, node);
        bytes32 beacon = beaconOf(run, ref.step);
        uint256 published = weights.publications(run, ref.step).number;
        vm.prank(node);
        expectRefusal(why, since, published);
        runs.submit(run, ref.root, ref.step, ref.sequence, 1, beacon);
    }
}
