// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";

/// @title What parties sign
/// @notice EIP-712 messages of one domain, whichever contract checks them: it names the chain and Runs. A message names its
/// run itself, so none can be replayed to another chain, deployment or run.
library Typed {
    bytes32 private constant DOMAIN =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");

    /// @dev Computed each time, so that it stays right when a chain forks.
    function digest(address runs, bytes32 content) internal view returns (bytes32) {
        bytes32 domain = keccak256(abi.encode(DOMAIN, keccak256("Murmuration"), keccak256("1"), block.chainid, runs));
        return keccak256(abi.encodePacked(hex"1901", domain, content));
    }

    /// @return Whether `who` signed with a plain key. What a contract has signed it can unsign; a plain key cannot.
    function signedByKey(address runs, bytes32 content, address who, bytes calldata signature)
        internal
        view
        returns (bool)
    {
        (address signer,,) = ECDSA.tryRecoverCalldata(digest(runs, content), signature);
        return signer == who && signer != address(0);
    }

    /// @return Whether `who` signed, with a plain key or, being a contract, by ERC-1271.
    function signedBy(address runs, bytes32 content, address who, bytes calldata signature)
        internal
        view
        returns (bool)
    {
        if (signedByKey(runs, content, who, signature)) return true;
        if (who.code.length == 0) return false;
        return SignatureChecker.isValidERC1271SignatureNowCalldata(who, digest(runs, content), signature);
    }
}
