// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "./interfaces/IRuns.sol";

/// @title Names of submissions
library Submissions {
    /// @dev The node is part of the name: who sees a root in the mempool and submits it first has another submission. The step is,
    /// with its sequence: nothing is submitted twice.
    function id(uint256 run, IRuns.SubmissionRef memory ref) internal pure returns (bytes32) {
        return keccak256(abi.encode(run, ref.node, ref.step, ref.sequence, ref.root));
    }
}
