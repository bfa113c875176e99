// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "./ICourt.sol";
import {IRuns} from "./IRuns.sol";

/// @title Runs and what they promised
/// @notice Here runs are created, and here their policies can be read. Court's constructor makes this contract.
interface IPolicies {
    /// @notice Fixed for the life of a run. Times in seconds, money in the token's smallest unit. A
    /// run's *span* is window + 3 * appeal + 2 * vote: from a submission to the last moment at which a case on it can be open.
    struct Policy {
        address owner; // funds the run, approves validators, appoints the trainer, may pause submissions and ban nodes
        uint96 fee; // from the seat, for each strike; the challenger gets `finderBps` of it
        address trainer; // first hot key that publishes weights, signs manifests, storage receipts and vouchers: see IWeights
        uint96 reward; // tokens per unit
        address gate; // signs invitations; zero: anyone with stake may join
        uint32 notice; // from the owner's announcement (pause, defund, ban, appoint) to its effect; at least `grace`
        uint32 grace; // for which a superseded head still accepts work; longer than the longest rollout
        uint32 maxUnits; // largest claim in one submission; less than 2^29
        uint96 bond; // least at risk in a case and in an appeal
        uint96 juryFee; // pay of a whole jury for each submission of an appealed case; at most `bond` for a case
        uint16 bondBps; // a challenger risks this many hundredths of a per cent of what its case withholds, if that is more than `bond`
        uint16 finderBps; // the challenger's share of a slash, in hundredths of a per cent; at most 5,000
        uint8 coSigners; // 1: a hard challenge needs a second validator's signature; 0: it needs none
        uint8 strikes; // rejected or skipped submissions within one window that suspend a seat
        uint8 leverage; // a proven seat's reward at risk of a verdict may be this many times its locked stake
        uint32 window; // in which a submission may be challenged
        uint32 appeal; // in which a case may be appealed; zero: verdicts are instant and final
        uint32 vote; // in which validators vote on an appeal
        uint16 maxPerStep; // most sequence numbers of one seat for one step
        uint96 nodeStake; // locked per node seat
        uint96 penalty; // slashed on a hard verdict, once per seat; all that the seat's key can lose by itself
        uint96 validatorStake; // locked per validator seat
        uint96 voucherCap; // most that vouchers signed by the trainer pay in one window
    }

    error InvalidPolicy(bytes32 field);

    event RunCreated(uint256 indexed run, address indexed owner, bytes32 specDigest, Policy policy);

    function runs() external view returns (IRuns);
    function court() external view returns (ICourt);

    /// @notice Number of runs; they are counted from 1.
    function count() external view returns (uint256);

    function policy(uint256 run) external view returns (Policy memory);
    function ownerOf(uint256 run) external view returns (address);
    function specDigests(uint256 run) external view returns (bytes32);

    /// @notice Creates a run. Anyone may; nothing of it can touch stake that was not locked in it.
    /// @param specDigest SHA-256 of the run spec's canonical JSON.
    function create(Policy calldata p, bytes32 specDigest) external returns (uint256 run);
}
