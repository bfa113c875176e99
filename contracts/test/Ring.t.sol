// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Ring} from "../src/Ring.sol";
import {Test} from "./support/Test.sol";

contract RingTest is Test {
    using Ring for uint256;

    function testFuzz_units_leave_between_one_and_one_and_a_fifth_windows_later(
        uint256 time,
        uint256 window,
        uint256 wait
    ) public pure {
        time = bound(time, 1, 1 << 39);
        window = bound(window, 5, type(uint32).max);
        wait = bound(wait, 0, 2 * window + 12);
        uint256 epoch = Ring.epochAt(time, window);
        (uint256 ring,) = uint256(0).roll(epoch);
        ring = ring.add(epoch, 7);
        (, uint256 matured) = ring.roll(Ring.epochAt(time + wait, window));
        if (wait < window) assertEq(matured, 0, "before the window");
        if (wait >= 6 * ((window + 4) / 5)) assertEq(matured, 7, "after six epochs");
    }

    function testFuzz_nothing_is_lost_or_made(uint8[40] memory hops, uint32[40] memory amounts) public pure {
        (uint256 ring, uint256 epoch, uint256 added, uint256 out) = (0, 0, 0, 0);
        for (uint256 i; i < 40; ++i) {
            epoch += hops[i] % 9;
            uint256 matured;
            (ring, matured) = ring.roll(epoch);
            out += matured;
            uint256 room = type(uint32).max - ring.at(epoch);
            uint256 units = amounts[i] < room ? amounts[i] : room;
            ring = ring.add(epoch, units);
            added += units;
            assertEq(added, out + ring.sum());
        }
        (, uint256 rest) = ring.roll(epoch + 6);
        assertEq(added, out + rest);
    }

    function testFuzz_sum_is_that_of_the_buckets(uint256 ring) public pure {
        uint256 sum;
        for (uint256 i; i < 6; ++i) {
            sum += ring.at(i);
        }
        assertEq(ring.sum(), sum);
    }

    function testFuzz_units_taken_out_and_merged_back_mature_when_they_would_have(
        uint256 born,
        uint256 taken,
        uint256 back,
        uint32 units,
        uint32 others
    ) public pure {
        born = bound(born, 10, 1_000);
        taken = bound(taken, born, born + 5);
        back = bound(back, taken, taken + 20);
        others = uint32(bound(others, 0, type(uint32).max - uint256(units)));
        (uint256 ring,) = uint256(0).roll(born);
        ring = ring.add(born, units).add(born, others);
        (ring,) = ring.roll(taken);
        (uint256 apart,) = uint256(0).roll(taken);
        (ring, apart) = (ring.sub(born, units), apart.add(born, units));

        (uint256 now_, uint256 maturedOthers) = ring.roll(back);
        (uint256 merged, uint256 matured) = now_.merge(apart);
        assertEq(matured, back > born + 5 ? units : 0);
        assertEq(maturedOthers, back > born + 5 ? others : 0);
        assertEq(merged.sum(), back > born + 5 ? 0 : uint256(units) + others);
        (, uint256 rest) = merged.roll(born + 6);
        assertEq(matured + maturedOthers + rest, uint256(units) + others);
    }

    function test_clear_keeps_the_epoch() public pure {
        (uint256 ring,) = uint256(0).roll(12_345);
        ring = ring.add(12_345, 6).add(12_343, 7);
        assertEq(ring.clear().sum(), 0);
        assertEq(uint64(ring.clear()), 12_345);
    }

    function test_a_ring_never_goes_back() public pure {
        (uint256 ring,) = uint256(0).roll(100);
        ring = ring.add(100, 5);
        (uint256 same, uint256 matured) = ring.roll(99);
        assertEq(same, ring);
        assertEq(matured, 0);
    }

    function test_a_bucket_cannot_overflow_or_underflow() public {
        (uint256 ring,) = uint256(0).roll(100);
        ring = ring.add(100, type(uint32).max);
        vm.expectRevert();
        this.add(ring, 100, 1);
        vm.expectRevert();
        this.sub(ring, 99, 1);
    }

    function add(uint256 ring, uint256 epoch, uint256 units) external pure returns (uint256) {
        return ring.add(epoch, units);
    }

    function sub(uint256 ring, uint256 epoch, uint256 units) external pure returns (uint256) {
        return ring.sub(epoch, units);
    }
}
