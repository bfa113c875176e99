// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IBench} from "../../src/interfaces/IBench.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Denied, NoSuchRun} from "../../src/interfaces/Errors.sol";
import {World} from "../support/World.sol";

contract CreateTest is World {
    function test_create_keeps_the_policy_and_says_so() public {
        IPolicies.Policy memory p = policy();
        vm.expectEmit(address(policies));
        emit IPolicies.RunCreated(2, OWNER, SPEC, p);
        assertEq(policies.create(p, SPEC), 2);
        assertEq(policies.count(), 2);
        assertEq(policies.specDigests(2), SPEC);
        assertEq(keccak256(abi.encode(policies.policy(2))), keccak256(abi.encode(p)));
    }

    function test_a_run_that_is_not_there_has_no_policy() public {
        expectRefusal(NoSuchRun.selector, 0);
        policies.policy(0);
        expectRefusal(NoSuchRun.selector, 2);
        policies.policy(2);
    }

    function test_only_policies_opens_a_run() public {
        ICourt.Terms memory inCourt;
        expectRefusal(Denied.selector, address(this));
        court.open(1, inCourt);
        IBench.Terms memory onBench;
        expectRefusal(Denied.selector, address(this));
        bench.open(1, onBench);
        IRuns.Terms memory inRuns;
        expectRefusal(Denied.selector, address(this));
        runs.open(1, inRuns);
        expectRefusal(Denied.selector, address(this));
        weights.open(1, STRANGER);
    }

    function test_the_smallest_policy_stands() public {
        IPolicies.Policy memory p;
        (p.owner, p.trainer, p.window, p.grace, p.notice) = (OWNER, TRAINER, 5, 1, 1);
        (p.maxUnits, p.maxPerStep, p.leverage, p.strikes, p.nodeStake) = (1, 1, 1, 1, 1);
        policies.create(p, SPEC);
    }

    function test_every_field_has_its_range() public {
        IPolicies.Policy memory p = policy();
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
        p.juryFee = 0;
        refused(p, "juryFee");
        p = policy();
        p.bond = 0;
        refused(p, "bond");
        p = policy();
        p.juryFee = BOND + 1;
        refused(p, "juryFee");
        p = policy();
        p.penalty = BOND - 1;
        refused(p, "penalty");
        p = policy();
        p.bondBps = 10_001;
        refused(p, "bondBps");
        p = policy();
        p.maxUnits = 1 << 29;
        refused(p, "maxUnits");
        p = policy();
        p.validatorStake = BOND - 1;
        refused(p, "validatorStake");
        p = policy();
        p.bondBps = 6_001; // of the largest submission, which is worth 100: more than 60
        refused(p, "validatorStake");
    }

    function test_a_seat_without_stake_is_refused_at_birth() public {
        IPolicies.Policy memory p = instantPolicy();
        (p.nodeStake, p.penalty, p.bond, p.fee, p.reward) = (0, 0, 0, 0, 0);
        refused(p, "nodeStake");
        (p.reward, p.nodeStake) = (2, 1); // not worth one unit
        refused(p, "nodeStake");
    }

    function test_stake_outlasts_verdicts() public {
        IPolicies.Policy memory p = policy();
        p.vote = (uint32(DELAY) - WINDOW - 3 * APPEAL) / 2; // an even number of seconds
        refused(p, "delay");
        p.vote -= 1;
        policies.create(p, SPEC);
    }

    function test_a_run_takes_no_more_than_a_seat_locks() public {
        IPolicies.Policy memory p = policy();
        p.nodeStake = PENALTY + BOND + FEE * STRIKES;
        policies.create(p, SPEC);
        p.nodeStake -= 1;
        refused(p, "nodeStake");
    }

    function test_sums_at_the_type_limits_do_not_wrap() public {
        IPolicies.Policy memory p = policy();
        (p.penalty, p.bond, p.nodeStake) = (type(uint96).max, type(uint96).max, type(uint96).max);
        p.validatorStake = type(uint96).max;
        refused(p, "bond");
        p.bond = type(uint88).max;
        refused(p, "nodeStake");
        p = policy();
        p.fee = type(uint96).max;
        refused(p, "nodeStake");
        p = policy();
        (p.window, p.appeal, p.vote) = (type(uint32).max, type(uint32).max, type(uint32).max);
        refused(p, "delay");
    }

    function refused(IPolicies.Policy memory p, bytes32 field) internal {
        refused(p, SPEC, field);
    }

    function refused(IPolicies.Policy memory p, bytes32 spec, bytes32 field) internal {
        vm.expectRevert(abi.encodeWithSelector(IPolicies.InvalidPolicy.selector, field));
        policies.create(p, spec);
    }
}
