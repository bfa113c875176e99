// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {World} from "../support/World.sol";

/// @title Benches of five and of seven, with as many liars as they bear, and with one silent juror too many
/// @notice The liars are the last of the bench: one of five, two of seven. As jurors they lie either way, abstain or keep silent, as the seed
/// has it, and everybody votes in an order that the seed chooses too.
contract MajorityTest is World {
    uint256 internal size;
    uint256 internal liars;
    mapping(uint256 v => uint256 stake) internal before;
    uint256 internal operatorBefore;

    function setUp() public override {
        deploy();
        for (uint256 v = 5; v < 7; ++v) {
            bonds.deposit(member(v), STAKE);
        }
    }

    /// forge-config: default.fuzz.runs = 32
    function testFuzz_a_liars_case_is_cleared_and_costs_nobody_else(uint256 seed) public {
        for (uint256 many = 5; many <= 7; many += 2) {
            arrange(many);
            IRuns.SubmissionRef[] memory list = submitMany(0, 3, 100);
            vm.prank(member(size - 1));
            uint256 number = court.challenge(run, list, EVIDENCE);
            appeal(0, number);
            judge(number, 0, 0, seed);
            assertStage(0, number, ICourt.Stage.Cleared);
            for (uint256 k; k < 3; ++k) {
                assertState(list[k], ICourt.State.Cleared);
            }
            nobodyHonestLost();
            assertGt(stakeOf(operators[0]), operatorBefore);
            assertEq(stakeOf(member(size - 1)), before[size - 1] - BOND);
            assertEq(runs.seats(run, nodes[0]).strikes, 0);
            assertEq(runs.seats(run, nodes[0]).openCases, 0);
        }
    }

    /// forge-config: default.fuzz.runs = 32
    function testFuzz_false_work_is_revoked_whatever_the_liars_do(uint256 seed) public {
        for (uint256 many = 5; many <= 7; many += 2) {
            arrange(many);
            IRuns.SubmissionRef[] memory list = submitMany(0, 3, 100);
            uint256 number = challenge(0, list);
            appeal(0, number);
            judge(number, 7, 0, seed);
            assertStage(0, number, ICourt.Stage.Upheld);
            for (uint256 k; k < 3; ++k) {
                assertState(list[k], ICourt.State.Revoked);
            }
            nobodyHonestLost();
            assertEq(runs.seats(run, nodes[0]).strikes, 3);
            assertEq(runs.funds(run).reserved, 0);
            assertRole(0, IRuns.Role.Active); // a liar alone finds nothing hard
        }
    }

    /// forge-config: default.fuzz.runs = 32
    function testFuzz_a_cheat_is_convicted_whatever_the_liars_do(uint256 seed) public {
        for (uint256 many = 5; many <= 7; many += 2) {
            arrange(many);
            uint256 number = accuse(0, 1, submit(0, 100));
            appeal(0, number);
            judge(number, 1, 1, seed);
            assertStage(0, number, ICourt.Stage.Upheld);
            assertTrue(court.cases(run, nodes[0], number).hard);
            assertRole(0, IRuns.Role.Banned);
            nobodyHonestLost();
            assertEq(runs.funds(run).reserved, 0);
        }
    }

    function test_two_liars_of_seven_convict_nobody() public {
        arrange(7);
        IRuns.SubmissionRef memory ref = submit(0, 100);
        bytes memory signature = signVerdict(run, court.submissionId(run, ref), 3, type(uint256).max, 0xB0B + 6);
        vm.prank(member(5));
        uint256 number = court.accuse(
            run, ref, type(uint256).max, EVIDENCE, ICourt.Receipt(member(6), type(uint256).max, EVIDENCE, signature)
        );
        appeal(0, number);
        assertEq(court.cases(run, nodes[0], number).jurors, 5);
        judge(number, 0, 0, 0);
        assertStage(0, number, ICourt.Stage.Cleared);
        nobodyHonestLost();
        assertEq(stakeOf(member(5)), before[5] - BOND);
        assertEq(stakeOf(member(6)), before[6] - BOND);
        assertRole(0, IRuns.Role.Active);
        assertEq(runs.seats(run, nodes[0]).openHard, 0);
    }

    /// @dev Then nothing is decided, and no more than the fees of two juries is lost.
    function test_one_silent_juror_too_many_and_the_submission_returns() public {
        for (uint256 many = 5; many <= 7; many += 2) {
            arrange(many);
            uint256 silent = liars + 1;
            IRuns.SubmissionRef memory ref = submit(0, 100);
            uint256 number = challenge(0, ref);
            for (uint256 round; round < 2; ++round) {
                appeal(0, number);
                uint256 pay = JURY_FEE / (size - 1 - round);
                for (uint256 v = 1 + round; v < size - silent; ++v) {
                    cast(v, number, 1, 0);
                }
                assertStage(0, number, ICourt.Stage.Appealed);
                pass(VOTE);
                settle(0, number);
                for (uint256 v = size - silent; v < size; ++v) {
                    assertEq(stakeOf(member(v)), before[v] - pay, "silence costs one juror's pay");
                    before[v] -= pay;
                }
                assertGe(stakeOf(member(round)), before[round] - JURY_FEE, "a challenger lost more than the jury's fee");
                if (round == 0) {
                    assertStage(0, number, ICourt.Stage.Undecided);
                    vm.prank(member(1));
                    court.challengeAgain(run, nodes[0], number, EVIDENCE);
                }
            }
            assertStage(0, number, ICourt.Stage.Returned);
            assertState(ref, ICourt.State.Cleared);
            for (uint256 v = 2; v < size - silent; ++v) {
                assertGt(stakeOf(member(v)), before[v], "who voted is paid");
            }
            assertGt(stakeOf(operators[0]), operatorBefore);
            assertEq(runs.seats(run, nodes[0]).held, 0);
            assertEq(runs.seats(run, nodes[0]).openCases, 0);
            assertEq(runs.seats(run, nodes[0]).strikes, 0);
        }
    }

    // ---- the bench --------------------------------------------------------------------------------------------------

    function arrange(uint256 many) internal {
        (size, liars) = (many, (many - 3) / 2);
        run = open(policy());
        seat(run, 0);
        for (uint256 v; v < many; ++v) {
            approve(run, member(v), true);
            enlist(run, member(v), true);
            before[v] = stakeOf(member(v));
        }
        operatorBefore = stakeOf(operators[0]);
        publish(run);
    }

    /// @dev All jurors act, the honest finding `f` and `h`.
    function judge(uint256 number, uint256 f, uint256 h, uint256 seed) internal {
        uint256 all = (1 << court.cases(run, nodes[0], number).submissions) - 1;
        for (uint256 i; i < size; ++i) {
            uint256 v = (i + seed % size) % size;
            if (!court.isJuror(run, nodes[0], number, member(v))) continue;
            uint256 how = (seed >> (8 + 2 * v)) % 4;
            if (v < size - liars) cast(v, number, f, h);
            else if (how == 0) cast(v, number, all & ~f, 0);
            else if (how == 1) cast(v, number, all, all);
            else if (how == 2) standAside(v, number);
        }
    }

    function cast(uint256 v, uint256 number, uint256 f, uint256 h) internal {
        vm.prank(member(v));
        court.vote(run, nodes[0], number, f, h, EVIDENCE);
    }

    function standAside(uint256 v, uint256 number) internal {
        vm.prank(member(v));
        court.abstain(run, nodes[0], number, "machine in doubt");
    }

    function nobodyHonestLost() internal view {
        for (uint256 v; v < size - liars; ++v) {
            assertGe(stakeOf(member(v)), before[v]);
        }
    }

    function member(uint256 v) internal pure returns (address) {
        return vm.addr(0xB0B + v);
    }

    function stakeOf(address who) internal view returns (uint256) {
        return bonds.accounts(who).active;
    }
}
