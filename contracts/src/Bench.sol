// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Denied, InsufficientStake, TooEarly, WrongState, ZeroAmount} from "./interfaces/Errors.sol";
import {IBonds} from "./interfaces/IBonds.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {Policies} from "./Policies.sol";

/// @title Validators of a run: their seats, their stake, and who of them is the bench of a submission
/// @notice The first part of Court. See ICourt.
abstract contract Bench is ICourt {
    /// @dev How many validators had no end of service in sight, from `since` on.
    struct Level {
        uint40 since;
        uint8 seated;
    }

    uint256 internal constant PLACES = 255; // validators a run can ever have: each has a bit in ballots, and counts have 8 bits

    /// @inheritdoc ICourt
    IBonds public immutable bonds;
    mapping(uint256 run => IRuns.Policy) internal _policies;
    mapping(uint256 run => mapping(address validator => Validator)) internal _validators;
    /// @inheritdoc ICourt
    mapping(uint256 run => address[]) public rosters;
    mapping(uint256 run => Level[]) internal _levels;

    constructor(IBonds bonds_) {
        bonds = bonds_;
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function validators(uint256 run, address validator) external view returns (Validator memory) {
        return _validators[run][validator];
    }

    /// @inheritdoc ICourt
    function seated(uint256 run) public view returns (uint256) {
        Level[] storage levels = _levels[run];
        uint256 many = levels.length;
        return many == 0 ? 0 : levels[many - 1].seated;
    }

    /// @inheritdoc ICourt
    function benchAt(uint256 run, uint256 time) public view returns (uint256) {
        Level[] storage levels = _levels[run];
        (uint256 low, uint256 high) = (0, levels.length); // of those before `time` the last is at low - 1
        while (low < high) {
            uint256 middle = high - low > 2 ? (low + high) / 2 : high - 1; // mostly it is the last
            if (levels[middle].since < time) low = middle + 1;
            else high = middle;
        }
        return low == 0 ? 0 : levels[low - 1].seated;
    }

    // ---- Runs only --------------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function requireJury(uint256 run) external view {
        IRuns.Policy storage p = _policies[run];
        uint256 needed = uint256(2) + p.coSigners;
        if (p.appeal != 0 && seated(run) < needed) revert TooFewValidators(seated(run), needed);
    }

    // ---- seats ------------------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function approve(uint256 run, address validator, bool on) external {
        if (msg.sender != _policies[run].owner) revert Denied(msg.sender);
        Validator storage v = _validators[run][validator];
        v.approved = on;
        emit ValidatorApproved(run, validator, on);
        if (!on && _permanent(v)) _retire(run, validator, v);
    }

    /// @inheritdoc ICourt
    function enlist(uint256 run, bool on) external {
        Validator storage v = _validators[run][msg.sender];
        if (on) {
            if (!v.approved) revert Denied(msg.sender);
            if (v.since != 0 && (v.until == 0 || block.timestamp < v.until)) revert WrongState();
            if (v.since == 0) {
                address[] storage roster = rosters[run];
                if (roster.length == PLACES) revert BenchFull();
                v.place = uint8(roster.length); // less than 255
                roster.push(msg.sender);
            }
            (v.since, v.until) = (_time(block.timestamp), 0);
            _level(run, seated(run) + 1);
            emit ValidatorSeated(run, msg.sender, true, 0);
            uint96 stake = _policies[run].validatorStake;
            if (v.locked < stake) _lock(run, v, stake - v.locked);
        } else {
            if (!_permanent(v)) revert WrongState();
            _retire(run, msg.sender, v);
        }
    }

    /// @inheritdoc ICourt
    function reinforce(uint256 run, uint96 amount) external {
        if (amount == 0) revert ZeroAmount();
        Validator storage v = _validators[run][msg.sender];
        if (!_permanent(v)) revert WrongState();
        _lock(run, v, amount);
    }

    /// @inheritdoc ICourt
    function unseat(uint256 run, address validator) external {
        Validator storage v = _validators[run][validator];
        if (!_permanent(v) || v.locked >= _policies[run].bond) revert WrongState();
        _retire(run, validator, v);
    }

    /// @inheritdoc ICourt
    function release(uint256 run, address validator) external {
        Validator storage v = _validators[run][validator];
        (uint256 from, uint96 amount) = (v.until, v.locked);
        if (from == 0 || amount == 0 || v.atRisk != 0) revert WrongState();
        from += 2 * _span(run);
        if (block.timestamp < from) revert TooEarly(from);
        v.locked = 0;
        emit ValidatorReleased(run, validator, amount);
        bonds.unlock(validator, amount);
    }

    // ---- shared -----------------------------------------------------------------------------------------------------

    /// @dev Whether a validator is of the bench of what was submitted at `time`: seated before, and serving until every case on it is over.
    function _onBench(uint256 run, Validator storage v, uint256 time) internal view returns (bool) {
        (uint256 since, uint256 until) = (v.since, v.until);
        return since != 0 && since < time && (until == 0 || until >= time + _span(run));
    }

    function _requireBench(uint256 run, address validator, uint256 time) internal view returns (Validator storage v) {
        v = _validators[run][validator];
        if (!_onBench(run, v, time)) revert NotOnBench(validator);
    }

    /// @dev The bit of a validator of the bench; none of anybody else.
    function _bitOf(uint256 run, address who, uint256 time) internal view returns (uint256) {
        Validator storage v = _validators[run][who];
        return _onBench(run, v, time) ? 1 << v.place : 0;
    }

    /// @dev Makes a validator of the bench a party to a case. Its bond is at risk unless verdicts are instant.
    function _sit(uint256 run, address validator, uint256 time, uint256 bond) internal {
        Validator storage v = _requireBench(run, validator, time);
        if (_policies[run].appeal == 0) return;
        uint256 needed = v.atRisk + bond;
        if (needed > v.locked) revert InsufficientStake(v.locked, needed);
        v.atRisk = uint96(needed); // at most locked
    }

    /// @dev Takes `amount` of a validator's lock, or what is left of it, into Court's account.
    function _lose(uint256 run, address validator, uint256 amount) internal returns (uint256) {
        return _slash(run, validator, amount, address(this), 10_000);
    }

    function _slash(uint256 run, address validator, uint256 amount, address finder, uint16 finderBps)
        internal
        returns (uint256 taken)
    {
        Validator storage v = _validators[run][validator];
        uint256 locked = v.locked;
        if (amount > locked) amount = locked;
        taken = bonds.slash(validator, uint128(amount), finder, finderBps); // at most locked, a uint96
        v.locked = uint96(locked - taken);
    }

    /// @dev See Policies.
    function _span(uint256 run) internal view returns (uint256) {
        IRuns.Policy storage p = _policies[run];
        return Policies.span(p.window, p.appeal, p.vote);
    }

    function _time(uint256 time) internal pure returns (uint40) {
        return uint40(time); // block time plus six spans of 32 bits fits 40 bits until the year 36,000
    }

    function _permanent(Validator storage v) private view returns (bool) {
        return v.since != 0 && v.until == 0;
    }

    /// @dev Sets the end of a validator's service: when what was submitted by now can no longer be in a case.
    function _retire(uint256 run, address validator, Validator storage v) private {
        v.until = _time(block.timestamp + _span(run));
        _level(run, seated(run) - 1);
        emit ValidatorSeated(run, validator, false, v.until);
    }

    function _level(uint256 run, uint256 many) private {
        Level[] storage levels = _levels[run];
        (uint256 last, Level memory now_) = (levels.length, Level(_time(block.timestamp), uint8(many))); // at most PLACES
        if (last != 0 && levels[last - 1].since == block.timestamp) levels[last - 1] = now_;
        else levels.push(now_);
    }

    function _lock(uint256 run, Validator storage v, uint96 amount) private {
        v.locked += amount;
        emit ValidatorReinforced(run, msg.sender, v.locked);
        bonds.lock(msg.sender, amount);
    }
}
