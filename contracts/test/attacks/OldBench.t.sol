// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @notice A seat has work from before the bench changed listed with its junk, to have all of it judged by those who were there then.
contract OldBenchTest is World {
    IRuns.SubmissionRef internal old;

    function setUp() public override {
        deploy();
        run = open(policy());
        for (uint256 i; i < 3; ++i) {
            seat(run, i);
        }
        for (uint256 v; v < 4; ++v) {
            approve(run, validators[v], true);
            enlist(run, validators[v], true);
        }
        publish(run);
        old = submit(0, 100);
        pass(1);
    }

    function test_a_bench_that_has_grown_judges_what_came_after() public {
        approve(run, validators[4], true);
        enlist(run, validators[4], true);
        onlyTheOld(5);
    }

    function test_a_bench_of_the_same_size_is_another_where_its_members_are() public {
        enlist(run, validators[3], false);
        pass(1);
        approve(run, validators[4], true);
        enlist(run, validators[4], true);
        onlyTheOld(4);
    }

    /// @dev One leaves and another comes in the same second: there is one level, of the same size as before.
    function test_a_change_within_one_second_is_one() public {
        enlist(run, validators[3], false);
        approve(run, validators[4], true);
        enlist(run, validators[4], true);
        onlyTheOld(4);
    }

    /// @dev The first that can be taken says whose bench it is, not one that is in a case already.
    function test_what_is_in_a_case_already_does_not_say_which_bench_it_is() public {
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](3);
        (list[0], list[2]) = (old, submit(0, 100));
        challenge(0, old);
        approve(run, validators[4], true);
        enlist(run, validators[4], true);
        pass(1);
        list[1] = submit(0, 1_000);
        uint256 number = challenge(0, list);
        assertEq(court.cases(run, nodes[0], number).submissions, 1);
        assertState(list[1], ICourt.State.Challenged);
        assertState(list[2], ICourt.State.Submitted);
    }

    /// @dev Work of one second, of several, and of the second in which the bench changes is still the old bench's.
    function test_one_bench_one_case() public {
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](3);
        list[0] = submit(0, 1);
        pass(1 hours);
        list[1] = submit(0, 1);
        pass(1 hours);
        approve(run, validators[4], true);
        enlist(run, validators[4], true);
        list[2] = submit(0, 1); // the same second: whoever came in it does not judge it
        pass(1);
        IRuns.SubmissionRef[] memory later = new IRuns.SubmissionRef[](2);
        (later[0], later[1]) = (submit(0, 1), list[2]);
        assertEq(court.cases(run, nodes[0], challenge(0, later)).submissions, 1);
        assertEq(court.cases(run, nodes[0], challenge(0, list)).submissions, 3);
    }

    function onlyTheOld(uint256 size) private {
        pass(1);
        (IRuns.SubmissionRef[] memory list, uint256 time) = withJunk();
        uint256 snapshot = vm.snapshotState();
        uint256 number = challenge(0, list);
        assertEq(court.cases(run, nodes[0], number).submissions, 1);
        assertState(old, ICourt.State.Challenged);
        assertState(list[1], ICourt.State.Submitted);
        assertEq(runs.seats(run, nodes[0]).held, 100);
        number = challenge(0, list); // what was left out is a case of its own
        assertState(list[1], ICourt.State.Challenged);
        assertEq(court.cases(run, nodes[0], number).earliest, time);
        appeal(0, number);
        assertEq(court.cases(run, nodes[0], number).jurors, size - 1);
        vm.revertToState(snapshot);
        (list[0], list[1]) = (list[1], list[0]); // the same the other way round
        number = challenge(0, list);
        assertState(old, ICourt.State.Submitted);
        assertEq(court.cases(run, nodes[0], number).earliest, time);
    }

    function withJunk() private returns (IRuns.SubmissionRef[] memory list, uint256 time) {
        list = new IRuns.SubmissionRef[](2);
        (list[0], list[1], time) = (old, submit(0, 1_000), block.timestamp);
    }
}
