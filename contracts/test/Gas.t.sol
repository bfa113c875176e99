// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../src/interfaces/IPolicies.sol";
import {ICourt} from "../src/interfaces/ICourt.sol";
import {IRuns} from "../src/interfaces/IRuns.sol";
import {Vm} from "./support/Test.sol";
import {World} from "./support/World.sol";

/// @title What the common transactions cost
/// @notice Each is sent as a transaction of its own (isolate), so the figure holds the 21,000, the calldata and everything
/// cold, less the refund. `forge test --match-contract GasTest -vv` prints them; the limits are promises.
/// forge-config: default.isolate = true
contract GasTest is World {
    uint256 internal constant TRAINER_KEY = 0x77;

    event log_named_uint(string key, uint256 value);

    function setUp() public override {
        deploy();
        switchTo(keyed(policy()));
        submit(1, 5); // somebody else works in the run
        bonds.deposit(SINK, 1); // and somebody was slashed before: the first to be pays 17,100 for the sink's word
    }

    function test_submit() public {
        spend("submit (first of a seat)", nodes[0], address(runs), submission(0), 115_000);
        for (uint256 k; k < 6; ++k) {
            pass(2 hours);
            spend("submit (steady)", nodes[0], address(runs), submission(0), 78_000);
        }
        pass(12 days);
        spend("submit (after a pause)", nodes[0], address(runs), submission(0), 78_000);
    }

    function test_submitMany() public {
        submit(0, 5);
        IRuns.Item[] memory items = new IRuns.Item[](64);
        for (uint256 k; k < 64; ++k) {
            items[k] = IRuns.Item(keccak256(abi.encode(k)), 100);
        }
        bytes memory data = abi.encodeCall(runs.submitMany, (run, 0, 1, beaconOf(run, 0), items));
        spend("submitMany(64)", nodes[0], address(runs), data, 64 * 30_000);
    }

    function test_skip() public {
        submit(0, 5);
        bytes memory data = abi.encodeCall(runs.skip, (run, 0, 1, beaconOf(run, 0)));
        spend("skip", nodes[0], address(runs), data, 80_000);
    }

    function test_claim() public {
        bytes memory data = abi.encodeCall(runs.claim, (run, nodes[0]));
        submit(0, 5);
        pass(2 days);
        spend("claim (first of an operator)", STRANGER, address(runs), data, 80_000);
        submit(0, 5);
        pass(2 days);
        spend("claim", STRANGER, address(runs), data, 80_000);
    }

    function test_soft() public {
        submit(0, 5);
        IRuns.SubmissionRef[] memory list = one(submit(0, 5));
        bytes memory data = abi.encodeCall(court.challenge, (run, list, EVIDENCE));
        spend("soft: challenge", validators[0], address(court), data, 160_000);
        pass(APPEAL);
        data = abi.encodeCall(court.settle, (run, nodes[0], 1));
        spend("soft: settle", validators[0], address(court), data, 120_000);
        list = submitMany(0, 64, 5);
        data = abi.encodeCall(court.challenge, (run, list, EVIDENCE));
        spend("soft: challenge 64 submissions", validators[0], address(court), data, 64 * 20_000);
        pass(APPEAL);
        data = abi.encodeCall(court.settle, (run, nodes[0], 2));
        spend("soft: settle 64 submissions", validators[0], address(court), data, 120_000);
    }

    function test_soft_instant() public {
        IPolicies.Policy memory p = keyed(instantPolicy());
        switchTo(p);
        submit(0, 5);
        bytes memory data = abi.encodeCall(court.challenge, (run, one(submit(0, 5)), EVIDENCE));
        spend("soft, instant, with a fee", validators[0], address(court), data, 160_000);
        p.fee = 0;
        switchTo(p);
        submit(0, 5);
        data = abi.encodeCall(court.challenge, (run, one(submit(0, 5)), EVIDENCE));
        spend("soft, instant, without", validators[0], address(court), data, 140_000);
    }

    function test_hard() public {
        submit(0, 5);
        IRuns.SubmissionRef memory ref = submit(0, 5);
        bytes memory data = abi.encodeCall(court.accuse, (run, ref, type(uint256).max, EVIDENCE, coSignature(1, ref)));
        uint256 gas = spend("hard: accuse", validators[0], address(court), data, 250_000);
        pass(APPEAL);
        data = abi.encodeCall(court.settle, (run, nodes[0], 1));
        gas += spend("hard: settle", validators[0], address(court), data, 250_000);
        emit log_named_uint("hard in all", gas);
        assertLe(gas, 450_000);
    }

    function test_hard_instant() public {
        switchTo(keyed(instantPolicy()));
        submit(0, 5);
        IRuns.SubmissionRef memory ref = submit(0, 5);
        bytes memory data = abi.encodeCall(court.accuse, (run, ref, type(uint256).max, EVIDENCE, coSignature(1, ref)));
        spend("hard, instant", validators[0], address(court), data, 380_000);
    }

    function test_appeal_path() public {
        submit(0, 5);
        uint256 number = accuse(0, 1, submit(0, 5));
        bytes memory data = abi.encodeCall(court.appeal, (run, nodes[0], number));
        spend("appeal", nodes[0], address(court), data, 120_000);
        data = abi.encodeCall(court.vote, (run, nodes[0], number, 0, 0, EVIDENCE));
        spend("vote", validators[2], address(court), data, 100_000);
        spend("vote that acquits", validators[3], address(court), data, 180_000);
    }

    function test_soft_appeal_path() public {
        submit(0, 5);
        uint256 number = challenge(0, submit(0, 5));
        appeal(0, number);
        bytes memory data = abi.encodeCall(court.vote, (run, nodes[0], number, 0, 0, EVIDENCE));
        spend("soft: vote", validators[1], address(court), data, 100_000);
        spend("soft: vote that acquits", validators[2], address(court), data, 180_000);
        number = challenge(0, submit(0, 5));
        appeal(0, number);
        data = abi.encodeCall(court.vote, (run, nodes[0], number, 1, 0, EVIDENCE));
        spend("soft: vote that something is false", validators[1], address(court), data, 120_000);
        spend("soft: the second alike", validators[2], address(court), data, 100_000);
        spend("soft: vote that upholds", validators[3], address(court), data, 220_000);
    }

    function test_seats() public {
        (keys[0], nodes[0]) = (0xF00, vm.addr(0xF00));
        Consent memory c = consentOf(run, 0);
        bytes memory signature = signConsent(c, keys[0]);
        bytes memory data =
            abi.encodeCall(runs.join, (run, c.node, c.peer, c.hardware, c.deadline, signature, bytes("")));
        spend("join", operators[0], address(runs), data, 110_000);
        data = abi.encodeCall(runs.leave, (run, nodes[0]));
        spend("leave", operators[0], address(runs), data, 60_000);
        pass(SPAN);
        data = abi.encodeCall(runs.release, (run, nodes[0]));
        spend("release", operators[0], address(runs), data, 70_000);
    }

    function test_publish() public {
        publish(run);
        pass(10);
        bytes memory data = abi.encodeCall(weights.publish, (run, 2, manifestOf(2)));
        uint256 gas = spend("publish", vm.addr(TRAINER_KEY), address(weights), data, 110_000);
        vm.roll(block.number + 2);
        gas += spend("draw", STRANGER, address(weights), abi.encodeCall(weights.draw, (run, 2)), 60_000);
        assertLe(gas, 150_000);
    }

    function test_redeem() public {
        vouchers.fund(run, 1_000);
        bytes32 kind = keccak256("Voucher(uint256 run,address validator,uint256 total)");
        for (uint256 total = 100; total <= 200; total += 100) {
            bytes memory signature = sign(keccak256(abi.encode(kind, run, validators[0], total)), TRAINER_KEY);
            bytes memory data = abi.encodeCall(vouchers.redeem, (run, validators[0], total, signature));
            spend(total == 100 ? "redeem (first)" : "redeem", STRANGER, address(vouchers), data, 170_000);
        }
    }

    function test_locate() public {
        bytes memory usual = '{"hub":"https://hub.example:8200","origin":"https://origin.example:8300"}';
        bytes memory data = abi.encodeCall(locations.locate, (run, usual));
        spend("locate (first, hub and origin)", OWNER, address(locations), data, 180_000);
        data = abi.encodeCall(locations.locate, (run, bytes.concat(usual, " ")));
        spend("locate (again)", OWNER, address(locations), data, 90_000);
        bytes memory longest = new bytes(512);
        for (uint256 i; i < 512; ++i) {
            longest[i] = "x";
        }
        data = abi.encodeCall(locations.locate, (run, longest));
        spend("locate (512 bytes)", OWNER, address(locations), data, 480_000);
    }

    function keyed(IPolicies.Policy memory p) internal pure returns (IPolicies.Policy memory) {
        p.trainer = vm.addr(TRAINER_KEY);
        return p;
    }

    function publish(uint256 run_) internal override {
        publishBy(vm.addr(TRAINER_KEY), run_);
    }

    function submission(uint256 i) internal view returns (bytes memory) {
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[i]);
        bytes32 beacon = beaconOf(run, ref.step);
        return abi.encodeCall(runs.submit, (run, ref.root, ref.step, ref.sequence, 100, beacon));
    }

    /// @dev Sends one transaction, prints what it cost, and holds it to its limit.
    function spend(string memory what, address from, address to, bytes memory data, uint256 limit)
        internal
        returns (uint256 gas)
    {
        vm.prank(from);
        (bool done, bytes memory answer) = to.call(data);
        if (!done) {
            assembly {
                revert(add(answer, 32), mload(answer))
            }
        }
        gas = vm.lastCallGas().gasTotalUsed;
        emit log_named_uint(what, gas);
        assertLe(gas, limit, what);
    }
}
