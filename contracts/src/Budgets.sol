// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Bench} from "./Bench.sol";
import {Denied, NoSuchRun, TooEarly, WrongState, ZeroAmount} from "./interfaces/Errors.sol";
import {IBench} from "./interfaces/IBench.sol";
import {IBonds} from "./interfaces/IBonds.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {IWeights} from "./interfaces/IWeights.sol";
import {Transfers} from "./Transfers.sol";
import {Weights} from "./Weights.sol";

/// @title Runs, their money and their heads
/// @notice The first part of Runs: what owners do, and what Weights tells. See IRuns.
abstract contract Budgets is IRuns {
    using SafeERC20 for IERC20;

    /// @dev All that submitting work reads of a run, in one word: a copy of the policy's, and when to look at the status.
    struct Limits {
        uint88 reward;
        uint8 leverage;
        uint32 window;
        uint32 grace;
        uint32 maxUnits;
        uint16 maxPerStep;
        uint8 strikes;
        uint40 changed; // earliest of pausedFrom and defundedFrom; zero: neither
    }

    /// @dev What the rest of this contract reads of the policy.
    struct Charter {
        address owner;
        uint32 notice;
        address gate;
        uint40 span; // see IPolicies
        uint40 trial; // appeal + vote
        uint96 nodeStake;
        uint96 floor; // penalty + bond
    }

    /// @inheritdoc IRuns
    IERC20 public immutable token;
    /// @inheritdoc IRuns
    IBonds public immutable bonds;
    /// @inheritdoc IRuns
    ICourt public immutable court;
    /// @inheritdoc IRuns
    IBench public immutable bench;
    /// @inheritdoc IRuns
    IWeights public immutable weights;
    mapping(uint256 run => Charter) internal _charters;
    mapping(uint256 run => Limits) internal _limits;
    mapping(uint256 run => Status) internal _statuses;
    mapping(uint256 run => Funds) internal _funds;
    mapping(uint256 run => mapping(uint32 step => Head)) internal _heads;

    modifier onlyOwner(uint256 run) {
        _only(_charters[run].owner);
        _;
    }

    modifier onlyWeights() {
        _only(address(weights));
        _;
    }

    constructor(IERC20 token_, uint64 delay, address sink, ICourt court_) {
        (token, court) = (token_, court_);
        bench = new Bench(token_, delay, sink, this, court_);
        bonds = bench.bonds();
        weights = new Weights(this, court_, bench);
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function funds(uint256 run) external view returns (Funds memory) {
        return _funds[run];
    }

    /// @inheritdoc IRuns
    function status(uint256 run) external view returns (Status memory) {
        return _statuses[run];
    }

    /// @inheritdoc IRuns
    function heads(uint256 run, uint32 step) external view returns (Head memory) {
        return _heads[run][step];
    }

    // ---- Policies only ----------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function open(uint256 run, Terms calldata t) external {
        _only(address(court.policies()));
        _limits[run] = Limits(t.reward, t.leverage, t.window, t.grace, t.maxUnits, t.maxPerStep, t.strikes, 0);
        _charters[run] = Charter(t.owner, t.notice, t.gate, t.span, t.trial, t.nodeStake, t.floor);
    }

    // ---- money ------------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function fund(uint256 run, uint128 amount) external {
        _requireRun(run);
        if (amount == 0) revert ZeroAmount();
        Funds storage f = _funds[run];
        (uint128 free, uint128 reserved) = (f.free, f.reserved);
        free = free + reserved + amount - reserved; // their sum fits 128 bits: no revocation can overflow
        f.free = free;
        emit Funded(run, int256(uint256(amount)));
        Transfers.pull(token, msg.sender, amount);
    }

    /// @inheritdoc IRuns
    function defund(uint256 run, uint128 amount) external onlyOwner(run) {
        Status storage st = _statuses[run];
        st.leaving = amount;
        _change(run, st.pausedFrom, amount == 0 ? 0 : _noticed(run));
        emit Defunding(run, amount, st.defundedFrom);
    }

    /// @inheritdoc IRuns
    function collect(uint256 run) external onlyOwner(run) returns (uint256 amount) {
        Status storage st = _statuses[run];
        Funds storage f = _funds[run];
        (uint128 free, uint128 leaving, uint40 from) = (f.free, st.leaving, st.defundedFrom);
        if (!_reached(from)) revert TooEarly(from);
        uint128 paid = free < leaving ? free : leaving;
        f.free = free - paid;
        st.leaving = leaving - paid;
        if (paid == leaving) _change(run, st.pausedFrom, 0);
        emit Funded(run, -int256(uint256(paid)));
        token.safeTransfer(msg.sender, paid);
        return paid;
    }

    /// @inheritdoc IRuns
    function pause(uint256 run, bool on) external onlyOwner(run) {
        Status storage st = _statuses[run];
        if (on && st.pausedFrom != 0) revert WrongState(); // a second announcement would put the first off
        _change(run, on ? _noticed(run) : 0, st.defundedFrom);
        emit Paused(run, on, st.pausedFrom);
    }

    /// @dev Moves `owed` from the free budget to the reserve, minding what the owner announced.
    function _reserve(uint256 run, Limits memory l, uint256 owed) internal {
        Funds storage f = _funds[run];
        (uint256 free, uint256 reserved) = (f.free, f.reserved);
        uint256 available = free;
        if (_reached(l.changed)) {
            Status storage st = _statuses[run];
            if (_reached(st.pausedFrom)) revert RunPaused(st.pausedFrom);
            if (_reached(st.defundedFrom)) available = free > st.leaving ? free - st.leaving : 0;
        }
        if (available < owed) revert Unfunded(available, owed);
        (free, reserved) = (free - owed, reserved + owed);
        (f.free, f.reserved) = (uint128(free), uint128(reserved)); // their sum fits 128 bits: see fund
    }

    /// @dev Gives back to the budget what was reserved.
    function _revoke(uint256 run, uint256 amount) internal {
        Funds storage f = _funds[run];
        (uint256 free, uint256 reserved) = (f.free, f.reserved);
        (free, reserved) = (free + amount, reserved - amount);
        (f.free, f.reserved) = (uint128(free), uint128(reserved)); // their sum fits 128 bits: see fund
    }

    // ---- weights ----------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function advance(uint256 run, uint32 step) external onlyWeights {
        uint40 time = uint40(block.timestamp); // fits as in _noticed
        _heads[run][step] = Head(0, time, 0, uint40(block.number)); // fits as in Seats
        if (step != 0) _heads[run][step - 1].superseded = time;
    }

    /// @inheritdoc IRuns
    function draw(uint256 run, uint32 step, bytes17 beacon) external onlyWeights {
        _heads[run][step].beacon = beacon;
    }

    // ---- shared -----------------------------------------------------------------------------------------------------

    function _only(address who) internal view {
        if (msg.sender != who) revert Denied(msg.sender);
    }

    function _requireRun(uint256 run) internal view {
        if (_limits[run].window == 0) revert NoSuchRun(run);
    }

    function _limitsOf(uint256 run) internal view returns (Limits memory) {
        return _limits[run];
    }

    /// @dev Sets when announcements take effect, and from when submitting has to mind them.
    function _change(uint256 run, uint40 pausedFrom, uint40 defundedFrom) private {
        Status storage st = _statuses[run];
        (st.pausedFrom, st.defundedFrom) = (pausedFrom, defundedFrom);
        bool first = pausedFrom != 0 && (defundedFrom == 0 || pausedFrom < defundedFrom);
        _limits[run].changed = first ? pausedFrom : defundedFrom;
    }

    /// @dev When an announcement of the owner takes effect.
    function _noticed(uint256 run) internal view returns (uint40) {
        return uint40(block.timestamp + _charters[run].notice); // block time fits 40 bits until the year 36,812
    }

    /// @dev Whether a time that was set has come.
    function _reached(uint40 time) internal view returns (bool) {
        return time != 0 && block.timestamp >= time;
    }
}
