// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IRuns} from "./interfaces/IRuns.sol";

/// @title What a policy must keep, and what follows from it
library Policies {
    /// @dev Reverts with the name of the first field that is out of range.
    function check(IRuns.Policy calldata p, uint256 delay) internal pure {
        _require(p.owner != address(0), "owner");
        _require(p.trainer != address(0), "trainer");
        _require(p.window >= 5, "window"); // an epoch has a second at least
        // stake must outlast verdicts, whatever happens to the seat it backed
        _require(span(p.window, p.appeal, p.vote) < delay, "delay");
        _require(p.grace != 0, "grace");
        _require(p.notice >= p.grace, "notice");
        _require(p.maxUnits != 0 && p.maxUnits < 1 << 29, "maxUnits"); // a parcel of a case has 29 bits for units
        _require(p.maxPerStep != 0, "maxPerStep");
        _require(p.leverage != 0, "leverage");
        _require(p.strikes != 0, "strikes");
        _require(p.finderBps <= 5_000, "finderBps"); // a culprit and its accuser together must lose
        _require(p.bondBps <= 10_000, "bondBps");
        _require(p.coSigners <= 1, "coSigners");
        if (p.appeal != 0) {
            _require(p.vote != 0, "vote");
            _require(p.bond != 0, "bond"); // or accusing and appealing would be free
            _require(p.juryFee != 0 && p.juryFee <= p.bond, "juryFee"); // the loser's bond pays the jury
            _require(p.penalty >= p.bond, "penalty"); // a lost appeal of a seat's key comes out of it
        }
        _require(p.nodeStake != 0 && p.nodeStake >= p.reward, "nodeStake"); // or a seat could submit nothing
        // a run takes what a seat locked in it and no more: a conviction, one lost appeal, and a window's strikes
        _require(uint256(p.penalty) + p.bond + uint256(p.fee) * p.strikes <= p.nodeStake, "nodeStake");
        // a validator can challenge the largest submission there is
        _require(bond(p.bond, p.bondBps, p.reward, p.maxUnits) <= p.validatorStake, "validatorStake");
    }

    /// @return Seconds from a submission to the last moment at which a case on it can be open: it is challenged as its window ends,
    /// appealed and voted on at the last moment, challenged again, and all that once more.
    function span(uint256 window, uint256 appeal, uint256 vote) internal pure returns (uint256) {
        return window + 3 * appeal + 2 * vote;
    }

    /// @return amount What the challenger of `units` risks.
    function bond(uint256 least, uint256 bondBps, uint256 reward, uint256 units) internal pure returns (uint256 amount) {
        amount = (reward * units * bondBps) / 10_000; // 96 + 40 + 14 bits at most
        if (amount < least) amount = least;
    }

    function _require(bool sound, bytes32 field) private pure {
        if (!sound) revert IRuns.InvalidPolicy(field);
    }
}
