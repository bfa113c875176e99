// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "./interfaces/IRuns.sol";

/// @title What a policy must keep
library Policies {
    /// @dev Reverts with the name of the first field that is out of range.
    function check(IRuns.Policy calldata p, uint256 delay) internal pure {
        _require(p.owner != address(0), "owner");
        _require(p.trainer != address(0), "trainer");
        _require(p.window >= 5, "window"); // an epoch has a second at least
        // stake must outlast verdicts, whatever happens to the seat it backed
        _require(uint256(p.window) + p.appeal + p.vote < delay, "delay");
        _require(p.grace != 0, "grace");
        _require(p.notice >= p.grace, "notice");
        _require(p.maxUnits != 0, "maxUnits");
        _require(p.maxPerStep != 0, "maxPerStep");
        _require(p.leverage != 0, "leverage");
        _require(p.strikes != 0, "strikes");
        _require(p.finderBps <= 5_000, "finderBps"); // a culprit and its accuser together must lose
        _require(p.coSigners <= 1, "coSigners");
        if (p.appeal != 0) {
            _require(p.vote != 0, "vote");
            _require(p.quorum != 0, "quorum");
            _require(p.bond != 0, "bond"); // or accusing and appealing would be free
        }
        // a run takes what a seat locked in it and no more: a conviction, one lost appeal, and a window's strikes
        _require(uint256(p.penalty) + p.bond + uint256(p.fee) * p.strikes <= p.nodeStake, "nodeStake");
        _require(p.bond <= p.validatorStake, "validatorStake");
    }

    function _require(bool sound, bytes32 field) private pure {
        if (!sound) revert IRuns.InvalidPolicy(field);
    }
}
