// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, NoSuchRun} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract CreateTest is World {
    function test_create_keeps_the_policy_and_says_so() public {
        IRuns.Policy memory p = policy();
        vm.expectEmit(address(runs));
        emit IRuns.RunCreated(2, OWNER, SPEC, p);
        assertEq(runs.create(p, SPEC), 2);
        assertEq(runs.count(), 2);
        assertEq(runs.specDigests(2), SPEC);
        assertEq(keccak256(abi.encode(court.policy(2))), keccak256(abi.encode(p)));
    }

    function test_a_run_that_is_not_there_has_no_policy() public {
        expectRefusal(NoSuchRun.selector, 0);
        court.policy(0);
        expectRefusal(NoSuchRun.selector, 2);
        court.policy(2);
    }

    function test_only_runs_gives_court_a_run() public {
        IRuns.Policy memory p = policy();
        expectRefusal(Denied.selector, address(this));
        court.open(1, p);
    }

    function test_the_smallest_policy_stands() public {
        IRuns.Policy memory p;
        (p.owner, p.trainer, p.window, p.grace, p.notice) = (OWNER, TRAINER, 5, 1, 1);
        (p.maxUnits, p.maxPerStep, p.leverage, p.strikes) = (1, 1, 1, 1);
        runs.create(p, SPEC);
    }

    function test_every_field_has_its_range() public {
        IRuns.Policy memory p = policy();
        refused(p, 0, "specDigest");
        p.owner = address(0);
        refused(p, "owner");
        p = policy();
        p.trainer = address(0);
        refused(p, "trainer");
        p = policy();
        p.window = 4;
        refused(p, "window");
        p = policy();
        p.grace = 0;
        refused(p, "grace");
        p = policy();
        p.notice = GRACE - 1;
        refused(p, "notice");
        p = policy();
        p.maxUnits = 0;
        refused(p, "maxUnits");
        p = policy();
        p.maxPerStep = 0;
        refused(p, "maxPerStep");
        p = policy();
        p.leverage = 0;
        refused(p, "leverage");
        p = policy();
        p.strikes = 0;
        refused(p, "strikes");
        p = policy();
        p.finderBps = 5_001;
        refused(p, "finderBps");
        p = policy();
        p.coSigners = 2;
        refused(p, "coSigners");
        p = policy();
        p.vote = 0;
        refused(p, "vote");
        p = policy();
        p.quorum = 0;
        refused(p, "quorum");
        p = policy();
        p.bond = 0;
        refused(p, "bond");
        p = policy();
        p.validatorStake = BOND - 1;
        refused(p, "validatorStake");
    }

    function test_stake_outlasts_verdicts() public {
        IRuns.Policy memory p = policy();
        p.vote = uint32(DELAY) - WINDOW - APPEAL;
        refused(p, "delay");
        p.vote -= 1;
        runs.create(p, SPEC);
    }

    function test_a_run_takes_no_more_than_a_seat_locks() public {
        IRuns.Policy memory p = policy();
        p.nodeStake = PENALTY + BOND + uint128(FEE) * STRIKES;
        runs.create(p, SPEC);
        p.nodeStake -= 1;
        refused(p, "nodeStake");
    }

    function test_sums_at_the_type_limits_do_not_wrap() public {
        IRuns.Policy memory p = policy();
        (p.penalty, p.bond, p.nodeStake) = (type(uint128).max, type(uint128).max, type(uint128).max);
        p.validatorStake = type(uint128).max;
        refused(p, "nodeStake");
        p = policy();
        p.fee = type(uint96).max;
        refused(p, "nodeStake");
        p = policy();
        (p.window, p.appeal, p.vote) = (type(uint32).max, type(uint32).max, type(uint32).max);
        refused(p, "delay");
    }

    function refused(IRuns.Policy memory p, bytes32 field) internal {
        refused(p, SPEC, field);
    }

    function refused(IRuns.Policy memory p, bytes32 spec, bytes32 field) internal {
        vm.expectRevert(abi.encodeWithSelector(IRuns.InvalidPolicy.selector, field));
        runs.create(p, spec);
    }
}
