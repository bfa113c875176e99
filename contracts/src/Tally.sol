// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "./interfaces/ICourt.sol";

/// @title Counting ballots
/// @notice Counts up to 255 votes on each of 256 submissions at once: bit i of plane k is bit k of the count for submission i, and adding is
/// done as on paper, all columns in parallel.
library Tally {
    struct Count {
        uint256 foundFalse; // by a majority
        uint256 foundHard; // by a majority; a part of foundFalse
        uint256 cleared; // so many found them good that no majority can find them false
        uint256 decided; // no further vote can change what is said of these
    }

    function count(ICourt.Ballot[] memory ballots, uint256 jurors) internal pure returns (Count memory c) {
        uint256 majority = jurors / 2 + 1;
        uint256 minority = jurors == 0 ? 1 : jurors - jurors / 2; // so many against it, and there is none
        uint256 votes;
        if (ballots.length == 1) {
            // all alike, as most juries are: the same, for less
            votes = ones(ballots[0].jurors);
            if (votes < minority) return c;
            if (votes >= majority) (c.foundFalse, c.foundHard) = (ballots[0].foundFalse, ballots[0].foundHard);
            c.cleared = ~ballots[0].foundFalse;
            c.decided = c.cleared | c.foundFalse; // hard or not hard: those who said false said the same of it
            return c;
        }
        uint256[8] memory falses;
        uint256[8] memory hards;
        for (uint256 i; i < ballots.length; ++i) {
            uint256 many = ones(ballots[i].jurors);
            votes += many;
            _add(falses, ballots[i].foundFalse, many);
            _add(hards, ballots[i].foundHard, many);
        }
        if (votes < minority) return c;
        c.foundFalse = _atLeast(falses, majority);
        c.foundHard = _atLeast(hards, majority);
        c.cleared = ~_atLeast(falses, votes - minority + 1);
        uint256 mild = ~_atLeast(hards, votes - minority + 1); // not hard, by so many that no majority can find it so
        c.decided = c.cleared | c.foundHard | (c.foundFalse & mild);
    }

    /// @return Number of bits set in `x`, of which there are at most 255.
    function ones(uint256 x) internal pure returns (uint256) {
        unchecked {
            uint256 every = type(uint256).max;
            x -= (x >> 1) & (every / 3);
            x = (x & (every / 5)) + ((x >> 2) & (every / 5));
            x = (x + (x >> 4)) & (every / 17);
            return (x * (every / 255)) >> 248; // the sum of its bytes
        }
    }

    /// @dev Adds `many` to the counts of the submissions in `mask`.
    function _add(uint256[8] memory planes, uint256 mask, uint256 many) private pure {
        unchecked {
            if (mask == 0) return;
            for (uint256 k; many != 0; (many >>= 1, ++k)) {
                if (many & 1 == 0) continue;
                uint256 carry = mask;
                for (uint256 j = k; carry != 0; ++j) {
                    // counts are of jurors, of whom there are at most 255
                    (planes[j], carry) = (planes[j] ^ carry, planes[j] & carry);
                }
            }
        }
    }

    /// @dev The submissions whose count is `least` or more.
    function _atLeast(uint256[8] memory planes, uint256 least) private pure returns (uint256 mask) {
        unchecked {
            mask = type(uint256).max; // equal so far
            for (uint256 k; k < 8; ++k) {
                mask = (least >> k) & 1 == 1 ? planes[k] & mask : planes[k] | mask;
            }
        }
    }
}
