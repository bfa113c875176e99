// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice The cheatcodes of Foundry that these tests use, and no others.
interface Vm {
    struct Log {
        bytes32[] topics;
        bytes data;
        address emitter;
    }

    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }

    function lastCallGas() external view returns (Gas memory);
    function addr(uint256 key) external pure returns (address);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function computeCreateAddress(address deployer, uint256 nonce) external pure returns (address);
    function getNonce(address account) external view returns (uint64);

    function getCode(string calldata artifact) external view returns (bytes memory creationCode);
    function warp(uint256 time) external;
    function roll(uint256 blockNumber) external;
    function chainId(uint256 id) external;
    function setBlockhash(uint256 blockNumber, bytes32 hash) external;
    function etch(address target, bytes calldata code) external;
    function cool(address target) external;
    function snapshotState() external returns (uint256 id);
    function revertToState(uint256 id) external returns (bool success);
    function revertToStateAndDelete(uint256 id) external returns (bool success);

    function prank(address sender) external;
    function startPrank(address sender) external;
    function stopPrank() external;
    function mockCall(address callee, bytes calldata data, bytes calldata returned) external;
    function recordLogs() external;
    function getRecordedLogs() external returns (Log[] memory);

    function expectRevert() external;
    function expectRevert(bytes4 selector) external;
    function expectRevert(bytes calldata data) external;
    function expectEmit(address emitter) external;
    function toString(uint256 value) external pure returns (string memory);

    function assertTrue(bool condition, string calldata why) external pure;
    function assertFalse(bool condition, string calldata why) external pure;
    function assertEq(uint256 a, uint256 b, string calldata why) external pure;
    function assertEq(address a, address b, string calldata why) external pure;
    function assertEq(bytes32 a, bytes32 b, string calldata why) external pure;
    function assertNotEq(bytes32 a, bytes32 b, string calldata why) external pure;
    function assertLe(uint256 a, uint256 b, string calldata why) external pure;
    function assertGe(uint256 a, uint256 b, string calldata why) external pure;
    function assertLt(uint256 a, uint256 b, string calldata why) external pure;
    function assertGt(uint256 a, uint256 b, string calldata why) external pure;
}

/// @title What a test contract needs of forge-std
/// @notice forge-std on npm is stale and unofficial, and the little of it that we use fits here.
abstract contract Test {
    /// @dev Foundry reads this shape from `targetSelectors`: the functions an invariant campaign may call.
    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    Vm internal constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D); // Foundry's cheatcode address

    address[] private _targetContracts;
    FuzzSelector[] private _targetSelectors;

    function targetContracts() external view returns (address[] memory) {
        return _targetContracts;
    }

    function targetSelectors() external view returns (FuzzSelector[] memory) {
        return _targetSelectors;
    }

    function targetContract(address target) internal {
        _targetContracts.push(target);
    }

    function targetSelector(FuzzSelector memory target) internal {
        _targetSelectors.push(target);
    }

    /// @dev Folds `x` into min .. max; values already inside stay, so that the fuzzer's edge cases survive.
    function bound(uint256 x, uint256 min, uint256 max) internal pure returns (uint256) {
        if (x >= min && x <= max) return x;
        return min + x % (max - min + 1); // cannot overflow: the full range has returned above
    }

    function assertTrue(bool condition) internal pure {
        vm.assertTrue(condition, "");
    }

    function assertTrue(bool condition, string memory why) internal pure {
        vm.assertTrue(condition, why);
    }

    function assertFalse(bool condition) internal pure {
        vm.assertFalse(condition, "");
    }

    function assertEq(uint256 a, uint256 b) internal pure {
        vm.assertEq(a, b, "");
    }

    function assertEq(uint256 a, uint256 b, string memory why) internal pure {
        vm.assertEq(a, b, why);
    }

    function assertEq(address a, address b) internal pure {
        vm.assertEq(a, b, "");
    }

    function assertEq(bytes32 a, bytes32 b) internal pure {
        vm.assertEq(a, b, "");
    }

    function assertNotEq(bytes32 a, bytes32 b) internal pure {
        vm.assertNotEq(a, b, "");
    }

    function assertLe(uint256 a, uint256 b) internal pure {
        vm.assertLe(a, b, "");
    }

    function assertLe(uint256 a, uint256 b, string memory why) internal pure {
        vm.assertLe(a, b, why);
    }

    function assertGe(uint256 a, uint256 b) internal pure {
        vm.assertGe(a, b, "");
    }

    function assertGe(uint256 a, uint256 b, string memory why) internal pure {
        vm.assertGe(a, b, why);
    }

    function assertLt(uint256 a, uint256 b) internal pure {
        vm.assertLt(a, b, "");
    }

    function assertGt(uint256 a, uint256 b) internal pure {
        vm.assertGt(a, b, "");
    }

    function assertGt(uint256 a, uint256 b, string memory why) internal pure {
        vm.assertGt(a, b, why);
    }

    /// @dev The next call must revert with exactly this error.
    function expectRefusal(bytes4 refusal) internal {
        vm.expectRevert(abi.encodeWithSelector(refusal));
    }

    /// @dev The next call must revert with exactly this error and this value.
    function expectRefusal(bytes4 refusal, uint256 value) internal {
        vm.expectRevert(abi.encodeWithSelector(refusal, value));
    }

    function expectRefusal(bytes4 refusal, address value) internal {
        vm.expectRevert(abi.encodeWithSelector(refusal, value));
    }

    /// @dev The next call must revert with exactly this error and these values.
    function expectRefusal(bytes4 refusal, uint256 first, uint256 second) internal {
        vm.expectRevert(abi.encodeWithSelector(refusal, first, second));
    }
}
