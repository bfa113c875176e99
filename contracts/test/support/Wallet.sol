// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @notice A contract that acts for its caller, and signs (ERC-1271) what it was told to.
contract Wallet {
    mapping(bytes32 => bool) public signed;

    function sign(bytes32 digest) external {
        signed[digest] = true;
    }

    function isValidSignature(bytes32 digest, bytes calldata) external view returns (bytes4) {
        return signed[digest] ? this.isValidSignature.selector : bytes4(0xffffffff);
    }

    function act(address target, bytes calldata data) external returns (bytes memory) {
        (bool done, bytes memory answer) = target.call(data);
        if (!done) {
            assembly {
                revert(add(answer, 32), mload(answer))
            }
        }
        return answer;
    }
}
