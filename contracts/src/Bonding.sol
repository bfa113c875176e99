// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title What a case puts at risk
library Bonding {
    /// @return amount What the challenger of `units` risks.
    function bond(uint256 least, uint256 bondBps, uint256 reward, uint256 units)
        internal
        pure
        returns (uint256 amount)
    {
        amount = (reward * units * bondBps) / 10_000; // 96 + 40 + 14 bits at most
        if (amount < least) amount = least;
        if (amount > type(uint88).max) amount = type(uint88).max; // what a case has room for
    }
}
