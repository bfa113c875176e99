// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {NoSuchRun} from "./interfaces/Errors.sol";
import {IBench} from "./interfaces/IBench.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {IPolicies} from "./interfaces/IPolicies.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {Bonding} from "./Bonding.sol";

/// @title Runs and what they promised
/// @notice See IPolicies.
contract Policies is IPolicies {
    /// @inheritdoc IPolicies
    IRuns public immutable runs;
    /// @inheritdoc IPolicies
    ICourt public immutable court;
    uint256 private immutable _delay; // of Bonds
    /// @inheritdoc IPolicies
    uint256 public count;
    mapping(uint256 run => Policy) internal _policies;
    /// @inheritdoc IPolicies
    mapping(uint256 run => bytes32) public specDigests;

    /// @param court_ Whose constructor makes this.
    constructor(IRuns runs_, ICourt court_) {
        (runs, court, _delay) = (runs_, court_, runs_.bonds().delay());
    }

    /// @inheritdoc IPolicies
    function policy(uint256 run) external view returns (Policy memory p) {
        p = _policies[run];
        if (p.window == 0) revert NoSuchRun(run);
    }

    /// @inheritdoc IPolicies
    function ownerOf(uint256 run) external view returns (address owner) {
        owner = _policies[run].owner;
        if (owner == address(0)) revert NoSuchRun(run);
    }

    /// @inheritdoc IPolicies
    function create(Policy calldata p, bytes32 specDigest) external returns (uint256 run) {
        if (specDigest == 0) revert InvalidPolicy("specDigest");
        _check(p);
        run = ++count;
        _policies[run] = p;
        specDigests[run] = specDigest;
        emit RunCreated(run, p.owner, specDigest, p);
        uint40 span = _span(p);
        runs.open(
            run,
            IRuns.Terms({
                owner: p.owner,
                reward: uint88(p.reward), // checked above
                gate: p.gate,
                nodeStake: p.nodeStake,
                floor: p.penalty + p.bond, // at most nodeStake
                window: p.window,
                grace: p.grace,
                notice: p.notice,
                maxUnits: p.maxUnits,
                span: span,
                trial: uint40(p.appeal) + p.vote,
                maxPerStep: p.maxPerStep,
                leverage: p.leverage,
                strikes: p.strikes
            })
        );
        runs.weights().open(run, p.trainer);
        court.open(
            run,
            ICourt.Terms({
                bond: p.bond,
                reward: p.reward,
                bondBps: p.bondBps,
                finderBps: p.finderBps,
                coSigners: p.coSigners,
                penalty: p.penalty,
                fee: p.fee,
                appeal: p.appeal,
                window: p.window,
                vote: p.vote
            })
        );
        runs.bench()
            .open(
                run,
                IBench.Terms({
                owner: p.owner,
                validatorStake: p.validatorStake,
                bond: p.bond,
                juryFee: p.appeal == 0 ? 0 : p.juryFee,
                span: span,
                finderBps: p.finderBps,
                coSigners: p.coSigners
            })
            );
    }

    /// @dev Reverts with the name of the first field that is out of range.
    function _check(Policy calldata p) private view {
        _require(p.owner != address(0), "owner");
        _require(p.trainer != address(0), "trainer");
        _require(p.window >= 5, "window"); // an epoch has a second at least
        // stake must outlast verdicts, whatever happens to the seat it backed
        _require(_span(p) < _delay, "delay");
        _require(p.grace != 0, "grace");
        _require(p.notice >= p.grace, "notice");
        _require(p.maxUnits != 0 && p.maxUnits < 1 << 29, "maxUnits"); // a parcel of a case has 29 bits for units
        _require(p.maxPerStep != 0, "maxPerStep");
        _require(p.leverage != 0, "leverage");
        _require(p.strikes != 0, "strikes");
        _require(p.finderBps <= 5_000, "finderBps"); // a culprit and its accuser together must lose
        _require(p.bondBps <= 10_000, "bondBps");
        _require(p.reward <= type(uint88).max, "reward"); // what Runs has room for
        _require(p.bond <= type(uint88).max, "bond"); // what a case has room for
        _require(p.coSigners <= 1, "coSigners");
        if (p.appeal != 0) {
            _require(p.vote != 0, "vote");
            _require(p.bond != 0, "bond"); // or accusing and appealing would be free
            _require(p.juryFee != 0 && p.juryFee <= p.bond, "juryFee"); // the loser's bond pays the jury
            _require(p.penalty >= p.bond, "penalty"); // a lost appeal of a seat's key comes out of it
        }
        _require(p.nodeStake != 0 && p.nodeStake >= p.reward, "nodeStake"); // or a seat could submit nothing
        // a run takes what a seat locked in it and no more: a conviction, one lost appeal, and a window's strikes
        _require(uint256(p.penalty) + p.bond + uint256(p.fee) * p.strikes <= p.nodeStake, "nodeStake");
        // a validator can challenge the largest submission there is
        _require(Bonding.bond(p.bond, p.bondBps, p.reward, p.maxUnits) <= p.validatorStake, "validatorStake");
    }

    /// @return Seconds from a submission to the last moment at which a case on it can be open: it is challenged as its window ends,
    /// appealed and voted on at the last moment, challenged again, and all that once more.
    function _span(Policy calldata p) private pure returns (uint40) {
        return uint40(p.window) + 3 * uint40(p.appeal) + 2 * uint40(p.vote); // six numbers of 32 bits
    }

    function _require(bool sound, bytes32 field) private pure {
        if (!sound) revert InvalidPolicy(field);
    }
}
