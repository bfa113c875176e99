// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {IRuns} from "../src/interfaces/IRuns.sol";
import {Vm} from "./support/Test.sol";
import {World} from "./support/World.sol";

/// @title What the common transactions cost
/// @notice Measured as a wallet pays it: 21,000, calldata, and execution with every address and slot cold.
/// forge-config: default.isolate = true
contract GasTest is World {
    event log_named_uint(string key, uint256 value);

    /// @dev Sends one transaction and returns its gas, less refunds (at most a fifth, as EIP-3529 has it) left aside.
    function cost(address from, address to, bytes memory data) internal returns (uint256) {
        vm.prank(from);
        (bool done, bytes memory answer) = to.call(data);
        if (!done) {
            assembly {
                revert(add(answer, 32), mload(answer))
            }
        }
        Vm.Gas memory gas = vm.lastCallGas();
        emit log_named_uint("refund", uint64(gas.gasRefunded));
        return gas.gasTotalUsed;
    }

    function submitData(uint256 i, uint32 units) internal view returns (bytes memory, IRuns.Ref memory ref) {
        ref = nextRef(run, nodes[i]);
        return
            (abi.encodeCall(runs.submit, (run, ref.root, ref.step, ref.sequence, units, beaconOf(run, ref.step))), ref);
    }

    function test_submit_and_claim() public {
        (bytes memory data,) = submitData(0, 100);
        emit log_named_uint("submit first", cost(nodes[0], address(runs), data));
        for (uint256 k; k < 6; ++k) {
            pass(2 hours);
            (data,) = submitData(0, 100);
            emit log_named_uint("submit steady", cost(nodes[0], address(runs), data));
        }
        pass(2 days);
        data = abi.encodeCall(runs.claim, (run, nodes[0]));
        emit log_named_uint("claim first", cost(operators[0], address(runs), data));
        submit(0, 100);
        pass(2 days);
        emit log_named_uint("claim", cost(operators[0], address(runs), data));
    }

    function test_submitMany() public {
        submit(0, 5);
        IRuns.Item[] memory items = new IRuns.Item[](64);
        for (uint256 k; k < 64; ++k) {
            items[k] = IRuns.Item(keccak256(abi.encode(k)), 100);
        }
        bytes memory data = abi.encodeCall(runs.submitMany, (run, 0, 1, beaconOf(run, 0), items));
        emit log_named_uint("submitMany(64) per item", cost(nodes[0], address(runs), data) / 64);
    }

    function test_soft() public {
        submit(0, 5);
        (, IRuns.Ref memory ref) = submitData(0, 5);
        submit(0, 5);
        bytes memory data = abi.encodeCall(court.challenge, (run, one(ref), EVIDENCE));
        emit log_named_uint("soft challenge", cost(validators[0], address(court), data));
        pass(12 hours);
        data = abi.encodeCall(court.settle, (run, nodes[0], 1));
        emit log_named_uint("soft settle", cost(validators[0], address(court), data));
    }

    function test_soft_instant() public {
        switchTo(instantPolicy());
        submit(0, 5);
        (, IRuns.Ref memory ref) = submitData(0, 5);
        submit(0, 5);
        bytes memory data = abi.encodeCall(court.challenge, (run, one(ref), EVIDENCE));
        emit log_named_uint("soft instant", cost(validators[0], address(court), data));
    }

    function test_hard() public {
        submit(0, 5);
        (, IRuns.Ref memory ref) = submitData(0, 5);
        submit(0, 5);
        bytes memory data = abi.encodeCall(court.accuse, (run, ref, type(uint256).max, EVIDENCE, coSignature(1, ref)));
        emit log_named_uint("hard challenge", cost(validators[0], address(court), data));
        pass(12 hours);
        data = abi.encodeCall(court.settle, (run, nodes[0], 1));
        emit log_named_uint("hard settle", cost(validators[0], address(court), data));
    }
}
