// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title What parties sign
/// @notice EIP-712 messages of one domain, whichever contract checks them: it names the chain and Runs. A message names its
/// run itself, so none can be replayed to another chain, deployment or run.
interface ISignatures {
    function runs() external view returns (address);

    /// @notice What is signed: the EIP-712 digest of a message whose struct hash is `content`.
    function digest(bytes32 content) external view returns (bytes32);

    /// @notice Whether `node`, a plain key, signed Join(run, operator, node, peer, hardware, deadline); peer: keccak256 of its PeerID.
    function joins(
        uint256 run,
        address operator,
        address node,
        bytes32 peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata signature
    ) external view returns (bool);

    /// @notice Whether `gate`, a plain key or a contract, signed Invite(run, node, deadline).
    function invites(address gate, uint256 run, address node, uint256 deadline, bytes calldata signature)
        external
        view
        returns (bool);

    /// @notice Whether `who` signed with a plain key. What a contract has signed it can unsign; a plain key cannot.
    function signedByKey(bytes32 content, address who, bytes calldata signature) external view returns (bool);

    /// @notice Whether `who` signed, with a plain key or, being a contract, by ERC-1271.
    function signedBy(bytes32 content, address who, bytes calldata signature) external view returns (bool);
}
