// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Denied, WrongState, ZeroAddress} from "./interfaces/Errors.sol";
import {IBench} from "./interfaces/IBench.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {IPolicies} from "./interfaces/IPolicies.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {IWeights} from "./interfaces/IWeights.sol";

/// @title Published weights, their beacons, and the trainer's key
/// @notice See IWeights.
contract Weights is IWeights {
    /// @dev Who publishes, and how often it happened: one word, and another for the key that follows.
    struct Trainer {
        address current;
        uint32 published;
        uint40 from; // when `next` takes over; zero: nobody does
        address next;
    }

    /// @inheritdoc IWeights
    IRuns public immutable runs;
    /// @inheritdoc IWeights
    ICourt public immutable court;
    IBench private immutable bench;
    mapping(uint256 run => Trainer) internal _trainers;
    mapping(uint256 run => address[]) internal _before;
    mapping(uint256 run => mapping(uint32 step => bytes32)) internal _manifests;
    mapping(uint256 run => mapping(uint32 step => uint256 block_)) internal _redrawn; // source, where the first was missed

    /// @param runs_ Whose constructor makes this.
    constructor(IRuns runs_, ICourt court_, IBench bench_) {
        (runs, court, bench) = (runs_, court_, bench_);
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @inheritdoc IWeights
    function trainer(uint256 run) public view returns (address) {
        Trainer storage t = _trainers[run];
        return t.from != 0 && block.timestamp >= t.from ? t.next : t.current;
    }

    /// @inheritdoc IWeights
    function successor(uint256 run) external view returns (address trainer_, uint256 from) {
        Trainer storage t = _trainers[run];
        if (block.timestamp < t.from) (trainer_, from) = (t.next, t.from);
    }

    /// @inheritdoc IWeights
    function replaced(uint256 run) external view returns (address[] memory) {
        return _before[run];
    }

    /// @inheritdoc IWeights
    function published(uint256 run) external view returns (uint32) {
        return _trainers[run].published;
    }

    /// @inheritdoc IWeights
    function publications(uint256 run, uint32 step) external view returns (Publication memory) {
        IRuns.Head memory head = runs.heads(run, step);
        return Publication(_manifests[run][step], bytes32(head.beacon), head.number, head.time, head.superseded);
    }

    /// @inheritdoc IWeights
    function beaconOf(uint256 run, uint32 step) external view returns (bytes32) {
        IRuns.Head memory head = runs.heads(run, step);
        if (head.beacon != 0 || head.number == 0) return bytes32(head.beacon);
        bytes32 hash = blockhash(_sourceOf(run, step, head));
        return hash == 0 ? hash : bytes32(_beacon(hash, run, step));
    }

    /// @inheritdoc IWeights
    function sourceOf(uint256 run, uint32 step) external view returns (uint256 number) {
        return _sourceOf(run, step, runs.heads(run, step));
    }

    // ---- weights ----------------------------------------------------------------------------------------------------

    /// @inheritdoc IWeights
    function publish(uint256 run, uint32 step, bytes32 manifest) external {
        if (msg.sender != trainer(run)) revert Denied(msg.sender);
        uint32 count = _trainers[run].published;
        if (manifest == 0) revert WrongState();
        if (step != count) revert IRuns.WrongStep(step, count);
        bench.requireJury(run);
        _manifests[run][step] = manifest;
        _trainers[run].published = count + 1;
        emit Published(run, step, manifest);
        runs.advance(run, step);
    }

    /// @inheritdoc IWeights
    function draw(uint256 run, uint32 step) external {
        IRuns.Head memory head = runs.heads(run, step);
        if (head.number == 0) revert WrongState();
        if (head.beacon != 0) return;
        uint256 source = _sourceOf(run, step, head);
        if (block.number <= source) revert IRuns.BeaconPending(source);
        bytes32 hash = blockhash(source);
        if (hash == 0) {
            source = block.number + 1;
            _redrawn[run][step] = source;
            emit Redrawn(run, step, source);
        } else {
            bytes17 beacon = _beacon(hash, run, step);
            emit Drawn(run, step, bytes32(beacon));
            runs.draw(run, step, beacon);
        }
    }

    // ---- the trainer's key ------------------------------------------------------------------------------------------

    /// @inheritdoc IWeights
    function appoint(uint256 run, address trainer_) external {
        IPolicies.Policy memory p = court.policies().policy(run);
        if (msg.sender != p.owner) revert Denied(msg.sender);
        if (trainer_ == address(0)) revert ZeroAddress();
        Trainer storage t = _trainers[run];
        address current = trainer(run);
        t.current = current;
        address[] storage before = _before[run];
        if (before.length == 0 || before[before.length - 1] != current) before.push(current);
        (t.next, t.from) = (trainer_, uint40(block.timestamp + p.notice)); // fits as in Runs: until the year 36,812
        emit Appointed(run, trainer_, t.from);
    }

    /// @inheritdoc IWeights
    function open(uint256 run, address trainer_) external {
        if (msg.sender != address(court.policies())) revert Denied(msg.sender);
        _trainers[run].current = trainer_;
    }

    function _sourceOf(uint256 run, uint32 step, IRuns.Head memory head) private view returns (uint256 source) {
        source = _redrawn[run][step];
        if (source == 0) source = head.number + 1;
    }

    function _beacon(bytes32 hash, uint256 run, uint32 step) private view returns (bytes17) {
        return bytes17(keccak256(abi.encode(hash, run, step, _manifests[run][step])));
    }
}
