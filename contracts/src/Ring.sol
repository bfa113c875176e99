// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// @title Units by age
/// @notice Six buckets of 32-bit units and the epoch of the newest, in one storage word. With epochs of window / 5, units
/// added in epoch k leave at the start of epoch k + 6: between 1.0 and 1.2 windows later, never before 1.0.
/// @dev Word layout: bits 0..63 the epoch; bits 64 + 32 * (epoch % 6) .. + 31 the units added in that epoch. Whoever keeps
/// rings bounds the units of a seat, in and out of the ring together, by 32 bits; then no bucket can ever overflow.
library Ring {
    uint256 internal constant BUCKETS = 6;
    uint256 private constant BUCKET = type(uint32).max; // mask of the lowest bits

    /// @return The epoch of `time` in a run with this window; the division rounds up, so that five epochs are never
    /// shorter than the window.
    function epochAt(uint256 time, uint256 window) internal pure returns (uint256) {
        return time / ((window + 4) / 5);
    }

    /// @return Units added in `epoch`; only meaningful while `epoch` is one of the last six.
    function at(uint256 ring, uint256 epoch) internal pure returns (uint256) {
        return (ring >> _shift(epoch)) & BUCKET;
    }

    /// @notice Moves the ring forward to `epoch`.
    /// @return The ring, and the units that matured on the way.
    function roll(uint256 ring, uint256 epoch) internal pure returns (uint256, uint256) {
        unchecked {
            uint256 newest = uint64(ring); // truncation takes the epoch field
            if (epoch <= newest) return (ring, 0);
            if (epoch - newest >= BUCKETS) return (epoch, sum(ring));
            uint256 matured; // six numbers of 32 bits at most
            for (uint256 i = newest + 1; i <= epoch; ++i) {
                uint256 shift = _shift(i);
                matured += (ring >> shift) & BUCKET;
                ring &= ~(BUCKET << shift);
            }
            return (((ring >> 64) << 64) | epoch, matured);
        }
    }

    /// @dev `epoch` must be one of the ring's last six: call roll first.
    function add(uint256 ring, uint256 epoch, uint256 units) internal pure returns (uint256) {
        uint256 shift = _shift(epoch);
        assert(((ring >> shift) & BUCKET) + units <= BUCKET);
        return ring + (units << shift);
    }

    /// @dev Takes units out of the bucket they were added to; that bucket must not have matured yet.
    function sub(uint256 ring, uint256 epoch, uint256 units) internal pure returns (uint256) {
        uint256 shift = _shift(epoch);
        assert(((ring >> shift) & BUCKET) >= units);
        return ring - (units << shift);
    }

    /// @notice Puts the units of `back`, a ring of the same window, into `ring`, each with its own maturity.
    /// @return The ring, and those units of `back` that have matured by the ring's epoch.
    function merge(uint256 ring, uint256 back) internal pure returns (uint256, uint256) {
        uint256 matured;
        (back, matured) = roll(back, uint64(ring)); // truncation takes the epoch field
        for (uint256 i; i < BUCKETS; ++i) {
            ring = add(ring, i, at(back, i));
        }
        return (ring, matured);
    }

    function sum(uint256 ring) internal pure returns (uint256) {
        unchecked {
            // written out, for every submission pays for it; six numbers of 32 bits cannot overflow
            return ((ring >> 64) & BUCKET) + ((ring >> 96) & BUCKET) + ((ring >> 128) & BUCKET)
                + ((ring >> 160) & BUCKET) + ((ring >> 192) & BUCKET) + (ring >> 224);
        }
    }

    function clear(uint256 ring) internal pure returns (uint256) {
        return uint64(ring); // truncation keeps the epoch field and drops all buckets
    }

    function _shift(uint256 epoch) private pure returns (uint256) {
        unchecked {
            return 64 + 32 * (epoch % BUCKETS);
        }
    }
}
