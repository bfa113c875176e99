// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title Rewards in waiting
/// @notice Six buckets of 32-bit units and the 32-bit epoch of the newest, in one storage word. With epochs of window / 5,
/// units added in epoch k leave at the start of epoch k + 6: between 1.0 and 1.2 windows later, never before 1.0.
/// @dev Word layout: bits 0..31 the epoch; bits 32 + 32 * (epoch % 6) .. + 31 the units added in that epoch.
library Ring {
    uint256 internal constant BUCKETS = 6;

    error RingFull();

    /// @return Units added in `epoch`; only meaningful while `epoch` is one of the last six.
    function at(uint256 ring, uint256 epoch) internal pure returns (uint256) {
        return (ring >> _shift(epoch)) & type(uint32).max;
    }

    /// @notice Moves the ring forward to `epoch`.
    /// @return The ring, and the units that matured on the way.
    function roll(uint256 ring, uint256 epoch) internal pure returns (uint256, uint256) {
        uint256 newest = uint32(ring); // truncation takes the epoch field
        if (epoch <= newest) return (ring, 0);
        uint256 steps = epoch - newest < BUCKETS ? epoch - newest : BUCKETS;
        uint256 matured;
        for (uint256 i = 1; i <= steps; ++i) {
            uint256 shift = _shift(newest + i);
            matured += (ring >> shift) & type(uint32).max;
            ring &= ~(uint256(type(uint32).max) << shift);
        }
        return (((ring >> 32) << 32) | epoch, matured);
    }

    /// @dev `epoch` must be the ring's own: call roll first.
    function add(uint256 ring, uint256 epoch, uint256 units) internal pure returns (uint256) {
        if (at(ring, epoch) + units > type(uint32).max) revert RingFull();
        return ring + (units << _shift(epoch));
    }

    /// @dev Takes units out of the bucket they were added to; that bucket must not have matured yet.
    function sub(uint256 ring, uint256 epoch, uint256 units) internal pure returns (uint256) {
        assert(at(ring, epoch) >= units);
        return ring - (units << _shift(epoch));
    }

    function sum(uint256 ring) internal pure returns (uint256 total) {
        for (uint256 i; i < BUCKETS; ++i) {
            total += at(ring, i);
        }
    }

    function clear(uint256 ring) internal pure returns (uint256) {
        return uint32(ring); // truncation keeps the epoch field and drops all buckets
    }

    function _shift(uint256 epoch) private pure returns (uint256) {
        return 32 + 32 * (epoch % BUCKETS);
    }
}
