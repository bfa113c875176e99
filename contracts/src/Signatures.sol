// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {ISignatures} from "./interfaces/ISignatures.sol";

/// @title What parties sign
/// @notice See ISignatures.
contract Signatures is ISignatures {
    bytes32 private constant DOMAIN =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");

    bytes32 private constant JOIN =
        keccak256("Join(uint256 run,address operator,address node,bytes32 peer,uint8 hardware,uint256 deadline)");
    bytes32 private constant INVITE = keccak256("Invite(uint256 run,address node,uint256 deadline)");

    /// @inheritdoc ISignatures
    address public immutable runs;

    /// @param runs_ Named by the domain.
    constructor(address runs_) {
        runs = runs_;
    }

    /// @inheritdoc ISignatures
    function digest(bytes32 content) public view returns (bytes32) {
        // computed each time, so that it stays right when a chain forks
        bytes32 domain = keccak256(abi.encode(DOMAIN, keccak256("Murmuration"), keccak256("1"), block.chainid, runs));
        return keccak256(abi.encodePacked(hex"1901", domain, content));
    }

    /// @inheritdoc ISignatures
    function joins(
        uint256 run,
        address operator,
        address node,
        bytes32 peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata signature
    ) external view returns (bool) {
        return signedByKey(keccak256(abi.encode(JOIN, run, operator, node, peer, hardware, deadline)), node, signature);
    }

    /// @inheritdoc ISignatures
    function invites(address gate, uint256 run, address node, uint256 deadline, bytes calldata signature)
        external
        view
        returns (bool)
    {
        return signedBy(keccak256(abi.encode(INVITE, run, node, deadline)), gate, signature);
    }

    /// @inheritdoc ISignatures
    function signedByKey(bytes32 content, address who, bytes calldata signature) public view returns (bool) {
        (address signer,,) = ECDSA.tryRecoverCalldata(digest(content), signature);
        return signer == who && signer != address(0);
    }

    /// @inheritdoc ISignatures
    function signedBy(bytes32 content, address who, bytes calldata signature) public view returns (bool) {
        if (signedByKey(content, who, signature)) return true;
        if (who.code.length == 0) return false;
        return SignatureChecker.isValidERC1271SignatureNowCalldata(who, digest(content), signature);
    }
}
