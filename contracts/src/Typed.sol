// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title What is signed
/// @notice The EIP-712 domain of every message between parties of a run, whichever contract checks it: it names the chain
/// and Runs. A message names its run itself, so none can be replayed to another chain, deployment or run.
library Typed {
    bytes32 private constant DOMAIN =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");

    /// @dev Computed each time, so that it stays right when a chain forks.
    function digest(address runs, bytes32 content) internal view returns (bytes32) {
        bytes32 domain = keccak256(abi.encode(DOMAIN, keccak256("Murmuration"), keccak256("1"), block.chainid, runs));
        return keccak256(abi.encodePacked(hex"1901", domain, content));
    }
}
