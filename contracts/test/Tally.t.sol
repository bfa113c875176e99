// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {Tally} from "../src/Tally.sol";
import {Test} from "./support/Test.sol";

/// @notice Tally, against counting one submission and one juror at a time.
contract TallyTest is Test {
    function testFuzz_counts_as_one_would_by_hand(uint256[5] memory falses, uint256[5] memory hards, uint256 seed)
        public
        pure
    {
        uint256 many = seed % 6; // ballots
        uint256 jurors = bound(seed >> 8, 0, 40);
        ICourt.Ballot[] memory ballots = new ICourt.Ballot[](many);
        uint256 votes;
        for (uint256 i; i < many; ++i) {
            uint256 alike = (seed >> (32 + 8 * i)) % 8;
            if (votes + alike > jurors) alike = jurors - votes;
            ballots[i] = ICourt.Ballot(falses[i], hards[i] & falses[i], ((1 << alike) - 1) << votes);
            votes += alike;
        }
        Tally.Count memory c = Tally.count(ballots, jurors);
        for (uint256 bit; bit < 256; bit += 5) {
            (uint256 f, uint256 h) = (0, 0);
            for (uint256 i; i < many; ++i) {
                uint256 alike = Tally.ones(ballots[i].jurors);
                if (ballots[i].foundFalse >> bit & 1 != 0) f += alike;
                if (ballots[i].foundHard >> bit & 1 != 0) h += alike;
            }
            bool isFalse = f > jurors / 2;
            bool isHard = h > jurors / 2;
            bool isCleared = jurors != 0 && votes != 0 && 2 * (votes - f) >= jurors;
            bool neverHard = jurors != 0 && votes != 0 && 2 * (votes - h) >= jurors;
            assertEq(c.foundFalse >> bit & 1, isFalse ? 1 : 0, "false");
            assertEq(c.foundHard >> bit & 1, isHard ? 1 : 0, "hard");
            assertEq(c.cleared >> bit & 1, isCleared ? 1 : 0, "cleared");
            assertEq(c.decided >> bit & 1, isCleared || isHard || (isFalse && neverHard) ? 1 : 0, "decided");
        }
    }

    function testFuzz_ones(uint256 x) public pure {
        if (x == type(uint256).max) return;
        uint256 many;
        for (uint256 i; i < 256; ++i) {
            many += x >> i & 1;
        }
        assertEq(Tally.ones(x), many);
    }
}
