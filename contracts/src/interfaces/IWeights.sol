// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "./ICourt.sol";
import {IRuns} from "./IRuns.sol";

/// @title Published weights, their beacons, and the trainer's key
/// @notice `publish` stores the manifest in block n. The beacon, which seeds all work on these weights, is the first 17 bytes of
/// keccak256(abi.encode(hash of block n + 1, run, step, manifest)), the other 15 are zero. The first submission draws it, or
/// anybody. Whoever publishes does not know it; the producer of block n + 1 does, and can withhold that block.
interface IWeights {
    struct Publication {
        bytes32 manifest; // hash of the signed SHARDCAST manifest
        bytes32 beacon; // zero: not drawn yet
        uint256 number; // block of publication
        uint256 time;
        uint256 superseded; // when the next version was published; zero: this is the head
    }

    event Published(uint256 indexed run, uint32 indexed step, bytes32 manifest);
    event Drawn(uint256 indexed run, uint32 indexed step, bytes32 beacon);
    event Redrawn(uint256 indexed run, uint32 indexed step, uint256 source);
    event Appointed(uint256 indexed run, address indexed trainer, uint256 from);

    function runs() external view returns (IRuns);
    function court() external view returns (ICourt);

    /// @notice The key that publishes, and signs manifests, storage receipts and vouchers, now.
    function trainer(uint256 run) external view returns (address);

    /// @notice The key that follows, and from when; zero: none was appointed.
    function successor(uint256 run) external view returns (address trainer_, uint256 from);

    /// @notice Keys that another was appointed to replace, the earliest first: what they signed is still served.
    function replaced(uint256 run) external view returns (address[] memory);

    /// @notice Number of publications; the head is the one before.
    function published(uint256 run) external view returns (uint32);

    function publications(uint256 run, uint32 step) external view returns (Publication memory);

    /// @notice The beacon that `draw` would write now, or has written; zero: its block is not there yet, or is out of reach.
    function beaconOf(uint256 run, uint32 step) external view returns (bytes32);

    /// @notice Block whose hash the beacon is made of: the one after publication, or after the last miss.
    function sourceOf(uint256 run, uint32 step) external view returns (uint256 number);

    /// @notice Announces the next version of the weights. Where verdicts can be appealed it takes enough validators for a jury.
    function publish(uint256 run, uint32 step, bytes32 manifest) external;

    /// @notice Writes down the beacon of a version, if it is not yet. Where nobody did for 256 blocks its block is out of reach: then
    /// this names the next block instead, and has to be called again. Anyone may call it.
    function draw(uint256 run, uint32 step) external;

    /// @notice Makes another key the trainer's once the notice has passed; again, another one. The run's owner calls.
    function appoint(uint256 run, address trainer_) external;

    /// @notice Keeps the first key of a new run. Policies calls.
    function open(uint256 run, address trainer_) external;
}
