// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ring} from "../src/Ring.sol";
import {Test} from "./support/Test.sol";

/// @notice Gives the library's refusals a call of their own to revert in.
contract RingCaller {
    function add(uint256 ring, uint256 epoch, uint256 units) external pure returns (uint256) {
        return Ring.add(ring, epoch, units);
    }

    function sub(uint256 ring, uint256 epoch, uint256 units) external pure returns (uint256) {
        return Ring.sub(ring, epoch, units);
    }
}

contract RingTest is Test {
    using Ring for uint256;

    uint256 internal constant FULL = type(uint32).max;
    uint256 internal constant EPOCHS = 512; // more than the model below can reach

    RingCaller internal caller = new RingCaller();

    /// @dev The model: units by epoch in a plain array, which leave when their epoch is six behind.
    function testFuzz_aRingIsAPlainArrayThatForgetsAfterSixEpochs(
        uint32 start,
        uint8[32] memory hops,
        uint24[32] memory amounts,
        uint8[32] memory regrets
    ) public pure {
        uint256 base = start % 2 ** 31; // leaves room for the hops within 32 bits
        uint256[] memory waiting = new uint256[](EPOCHS);
        uint256 epoch;
        (uint256 ring,) = Ring.roll(0, base);
        for (uint256 i; i < 32; ++i) {
            epoch += hops[i] % 9;
            uint256 matured;
            (ring, matured) = ring.roll(base + epoch);
            assertEq(matured, _ripe(waiting, epoch));
            ring = ring.add(base + epoch, amounts[i]);
            waiting[epoch] += amounts[i];

            // take back part of what some recent epoch added
            uint256 past = epoch - bound(regrets[i], 0, epoch < 5 ? epoch : 5);
            uint256 units = waiting[past] / 3;
            ring = ring.sub(base + past, units);
            waiting[past] -= units;

            assertEq(uint32(ring), base + epoch);
            _assertSame(ring, waiting, base, epoch);
        }
        assertEq(uint32(ring.clear()), base + epoch);
        assertEq(ring.clear().sum(), 0);
    }

    /// @dev Empties the model's epochs that are six or more behind.
    function _ripe(uint256[] memory waiting, uint256 epoch) private pure returns (uint256 matured) {
        for (uint256 e; e + 6 <= epoch; ++e) {
            matured += waiting[e];
            waiting[e] = 0;
        }
    }

    function _assertSame(uint256 ring, uint256[] memory waiting, uint256 base, uint256 epoch) private pure {
        uint256 sum;
        for (uint256 e = epoch < 5 ? 0 : epoch - 5; e <= epoch; ++e) {
            assertEq(ring.at(base + e), waiting[e]);
            sum += waiting[e];
        }
        assertEq(ring.sum(), sum);
    }

    function testFuzz_unitsLeaveAtTheSixthEpochAndNotBefore(uint32 epoch, uint32 units, uint32 wait) public pure {
        epoch %= 2 ** 31;
        wait %= 12;
        (uint256 ring,) = Ring.roll(0, epoch);
        (uint256 rolled, uint256 matured) = ring.add(epoch, units).roll(epoch + wait);
        assertEq(matured, wait < 6 ? 0 : units);
        assertEq(rolled.sum(), wait < 6 ? units : 0);
    }

    function test_sixFullBucketsDoNotTouchEachOther() public pure {
        uint256 ring;
        for (uint256 epoch; epoch < 6; ++epoch) {
            (ring,) = ring.roll(epoch);
            ring = ring.add(epoch, FULL);
        }
        for (uint256 epoch; epoch < 6; ++epoch) {
            assertEq(ring.at(epoch), FULL);
        }
        assertEq(ring.sum(), 6 * FULL);
        ring = ring.sub(3, FULL);
        assertEq(ring.at(2) + ring.at(4), 2 * FULL);
        assertEq(ring.at(3), 0);
        (, uint256 matured) = ring.roll(type(uint32).max);
        assertEq(matured, 5 * FULL);
    }

    function test_timeDoesNotRunBackwards() public pure {
        (uint256 ring,) = Ring.roll(0, 100);
        ring = ring.add(100, 7);
        (uint256 same, uint256 matured) = ring.roll(99);
        assertEq(same, ring);
        assertEq(matured, 0);
        (same, matured) = ring.roll(100);
        assertEq(same, ring);
        assertEq(matured, 0);
    }

    function test_aFullBucketRefusesMore() public {
        uint256 ring = caller.add(0, 0, FULL);
        expectRefusal(Ring.RingFull.selector);
        caller.add(ring, 0, 1);
        expectRefusal(Ring.RingFull.selector);
        caller.add(0, 0, FULL + 1);
    }

    function test_takingMoreThanWasAddedPanics() public {
        uint256 ring = Ring.add(0, 0, 10);
        ring = ring.add(1, FULL); // the neighbour must not lend
        expectRefusal(bytes4(keccak256("Panic(uint256)")), 0x01);
        caller.sub(ring, 0, 11);
    }
}
