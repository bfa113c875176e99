// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {Bonds} from "./Bonds.sol";
import {Denied, InsufficientStake, TooEarly, WrongState, ZeroAmount} from "./interfaces/Errors.sol";
import {IBench} from "./interfaces/IBench.sol";
import {IBonds} from "./interfaces/IBonds.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {Tally} from "./Tally.sol";

/// @title Validators: their seats, their stake, and who judges what
/// @notice See IBench.
contract Bench is IBench {
    using Tally for uint256;

    /// @dev How many validators had no end of service in sight, from `since` on.
    struct Level {
        uint40 since;
        uint8 seated;
    }

    /// @dev What a vote moves: who loses what, and who gets what of it.
    struct Payroll {
        IBonds.Payment[] charges;
        uint256 charged; // how many
        IBonds.Payment[] payments;
        uint256 paid; // how many
        uint256 left; // to be paid
    }

    uint256 private constant PLACES = 255; // validators a run can ever have: each has a bit in ballots, and counts have 8 bits

    /// @inheritdoc IBench
    IRuns public immutable runs;
    /// @inheritdoc IBench
    ICourt public immutable court;
    /// @inheritdoc IBench
    IBonds public immutable bonds;
    mapping(uint256 run => Terms) internal _terms;
    mapping(uint256 run => mapping(address validator => Validator)) internal _validators;
    /// @inheritdoc IBench
    mapping(uint256 run => mapping(uint256 place => address)) public rosters;
    mapping(uint256 run => uint256) internal _places; // taken so far
    mapping(uint256 run => Level[]) internal _levels;

    modifier onlyCourt() {
        if (msg.sender != address(court)) revert Denied(msg.sender);
        _;
    }

    /// @param runs_ Whose constructor makes this.
    constructor(IERC20 token, uint64 delay, address sink, IRuns runs_, ICourt court_) {
        (runs, court) = (runs_, court_);
        bonds = new Bonds(token, delay, sink, address(runs_), address(this));
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @inheritdoc IBench
    function validators(uint256 run, address validator) external view returns (Validator memory) {
        return _validators[run][validator];
    }

    /// @inheritdoc IBench
    function seated(uint256 run) public view returns (uint256) {
        Level[] storage levels = _levels[run];
        uint256 many = levels.length;
        return many == 0 ? 0 : levels[many - 1].seated;
    }

    /// @inheritdoc IBench
    function benchAt(uint256 run, uint256 time) public view returns (uint256) {
        uint256 before = _levelsBefore(run, time);
        return before == 0 ? 0 : _levels[run][before - 1].seated;
    }

    /// @inheritdoc IBench
    function termOf(uint256 run, uint256 time) external view returns (uint256 from, uint256 until) {
        Level[] storage levels = _levels[run];
        uint256 before = _levelsBefore(run, time);
        if (before != 0) from = levels[before - 1].since + 1; // who takes a seat judges what is submitted later
        until = before == levels.length ? type(uint40).max : levels[before].since;
    }

    /// @return low How many levels began before `time`.
    function _levelsBefore(uint256 run, uint256 time) private view returns (uint256 low) {
        Level[] storage levels = _levels[run];
        uint256 high = levels.length;
        while (low < high) {
            uint256 middle = high - low > 2 ? (low + high) / 2 : high - 1; // mostly it is the last
            if (levels[middle].since < time) low = middle + 1;
            else high = middle;
        }
    }

    /// @inheritdoc IBench
    function requireJury(uint256 run) external view {
        Terms storage t = _terms[run];
        uint256 needed = uint256(2) + t.coSigners;
        if (t.juryFee != 0 && seated(run) < needed) revert TooFewValidators(seated(run), needed);
    }

    // ---- seats ------------------------------------------------------------------------------------------------------

    /// @inheritdoc IBench
    function approve(uint256 run, address validator, bool on) external {
        if (msg.sender != _terms[run].owner) revert Denied(msg.sender);
        Validator storage v = _validators[run][validator];
        v.approved = on;
        emit ValidatorApproved(run, validator, on);
        if (!on && _permanent(v)) _retire(run, validator, v);
    }

    /// @inheritdoc IBench
    function enlist(uint256 run, bool on) external {
        Validator storage v = _validators[run][msg.sender];
        if (on) {
            if (!v.approved) revert Denied(msg.sender);
            if (v.since != 0 && (v.until == 0 || block.timestamp < v.until)) revert WrongState();
            if (v.since == 0) {
                uint256 place = _places[run]++;
                if (place == PLACES) revert BenchFull();
                v.place = uint8(place); // less than 255
                rosters[run][place] = msg.sender;
            }
            (v.since, v.until) = (_time(block.timestamp), 0);
            _level(run, seated(run) + 1);
            emit ValidatorSeated(run, msg.sender, true, 0);
            uint128 stake = _terms[run].validatorStake;
            if (v.locked < stake) _lock(run, v, stake - v.locked);
        } else {
            if (!_permanent(v)) revert WrongState();
            _retire(run, msg.sender, v);
        }
    }

    /// @inheritdoc IBench
    function reinforce(uint256 run, uint96 amount) external {
        if (amount == 0) revert ZeroAmount();
        Validator storage v = _validators[run][msg.sender];
        if (!_permanent(v)) revert WrongState();
        _lock(run, v, amount);
    }

    /// @inheritdoc IBench
    function unseat(uint256 run, address validator) external {
        Validator storage v = _validators[run][validator];
        if (!_permanent(v) || v.locked >= _terms[run].bond) revert WrongState();
        _retire(run, validator, v);
    }

    /// @inheritdoc IBench
    function release(uint256 run, address validator) external {
        Validator storage v = _validators[run][validator];
        (uint256 from, uint128 amount) = (v.until, v.locked);
        if (from == 0 || amount == 0 || v.atRisk != 0) revert WrongState();
        from += 2 * _terms[run].span;
        if (block.timestamp < from) revert TooEarly(from);
        v.locked = 0;
        emit ValidatorReleased(run, validator, amount);
        bonds.unlock(validator, amount);
    }

    // ---- Court only -------------------------------------------------------------------------------------------------

    /// @inheritdoc IBench
    function open(uint256 run, Terms calldata terms) external {
        if (msg.sender != address(court.policies())) revert Denied(msg.sender);
        _terms[run] = terms;
    }

    /// @inheritdoc IBench
    function bitOf(uint256 run, address who, uint256 time) public view returns (uint256) {
        Validator storage v = _validators[run][who];
        return _onBench(run, v, time) ? 1 << v.place : 0;
    }

    /// @inheritdoc IBench
    function sit(uint256 run, address first, address second, uint256 time, uint256 bond) external onlyCourt {
        _sit(run, first, time, bond);
        if (second != address(0)) _sit(run, second, time, bond);
    }

    /// @inheritdoc IBench
    function rise(uint256 run, address challenger, address coSigner, address appellant, uint256 bond)
        external
        onlyCourt
    {
        _rise(run, challenger, coSigner, appellant, bond);
    }

    /// @inheritdoc IBench
    function empanel(uint256 run, uint256 time, uint256 excused, address[5] calldata parties)
        external
        view
        returns (uint256 barred, uint256 jurors)
    {
        barred = excused;
        for (uint256 i; i < parties.length; ++i) {
            barred |= bitOf(run, parties[i], time);
        }
        jurors = benchAt(run, time) - barred.ones();
    }

    /// @inheritdoc IBench
    function payOut(uint256 run, address seat, uint256 number, Payout calldata x) external onlyCourt {
        Terms storage t = _terms[run];
        _rise(run, x.challenger, x.coSigner, x.appellant, x.bond);
        uint256 pay = t.juryFee * x.members.ones(); // of the whole jury, and then of one juror
        if (pay > t.bond) pay = t.bond;
        pay = x.jurors == 0 ? 0 : pay / x.jurors;
        uint256 whole = pay * x.jurors; // at most a bond
        Payroll memory r;
        r.charges = new IBonds.Payment[](3 + (x.late ? _places[run] : 0));
        if (x.paid != 0) _charge(r, x.operator, x.paid);
        uint256 lost = x.overcharged ? whole : x.lost;
        if (lost != 0) {
            _lose(r, run, x.challenger, lost);
            if (x.coSigner != address(0)) _lose(r, run, x.coSigner, lost);
        } else if (x.upheld != 0 && x.appellant != address(0) && !x.overcharged) {
            _lose(r, run, x.appellant, t.bond);
        }
        if (x.late) {
            _chargeSilent(r, run, seat, number, x, pay);
            if (x.upheld | x.cleared == 0 && r.left < whole) _lose(r, run, x.challenger, whole - r.left);
        }
        if (r.left != 0) _disburse(r, run, x, pay);
    }

    /// @inheritdoc IBench
    function impeach(uint256 run, address validator, address finder) external onlyCourt returns (uint256 slashed) {
        Validator storage v = _validators[run][validator];
        (uint128 bond, uint128 locked) = (_terms[run].bond, v.locked);
        slashed = bonds.slash(validator, bond < locked ? bond : locked, finder, _terms[run].finderBps);
        v.locked = uint128(locked - slashed); // at most locked
    }

    // ---- paying -----------------------------------------------------------------------------------------------------

    /// @dev Pays jurors for each submission on which they were with the majority, or on which there was none; a validator that
    /// appealed as if it had cleared all; and of what is left, the operator or the challenger. Neither where they disputed a charge of
    /// cheating over work that is merely false.
    function _disburse(Payroll memory r, uint256 run, Payout calldata x, uint256 pay) private {
        uint256 most = 2;
        for (uint256 i; i < x.ballots.length; ++i) {
            most += x.ballots[i].jurors.ones();
        }
        r.payments = new IBonds.Payment[](most);
        for (uint256 i; i < x.ballots.length; ++i) {
            ICourt.Ballot calldata b = x.ballots[i];
            uint256 against = ((b.foundFalse ^ x.upheld) | (b.foundHard ^ x.foundHard)) & (x.upheld | x.cleared);
            _oweJurors(r, run, b.jurors, _share(pay, x.members & ~against, x.members));
        }
        if (x.overcharged) {
            if (x.appellant != address(0)) _owe(r, x.appellant, pay);
        } else if (x.upheld != 0 && (x.cleared == 0 || x.foundHard != 0)) {
            _owe(r, x.challenger, (r.left * _terms[run].finderBps) / 10_000);
        } else {
            if (x.cleared != 0 && x.appellant != address(0)) _owe(r, x.appellant, _share(pay, x.cleared, x.members));
            _owe(r, x.operator, x.cleared == 0 ? r.left : r.left / 2); // were it all of a bond, bonds could be traded
        }
        (IBonds.Payment[] memory charges, IBonds.Payment[] memory payments) = (r.charges, r.payments);
        (uint256 charged, uint256 paid) = (r.charged, r.paid);
        assembly ("memory-safe") {
            mstore(charges, charged)
            mstore(payments, paid)
        }
        bonds.disburse(charges, payments);
    }

    function _oweJurors(Payroll memory r, uint256 run, uint256 jurors, uint256 due) private view {
        for (uint256 place; jurors >> place != 0; ++place) {
            if ((jurors >> place) & 1 != 0) _owe(r, rosters[run][place], due);
        }
    }

    /// @return The part of `pay` for `some` of `all` submissions.
    function _share(uint256 pay, uint256 some, uint256 all) private pure returns (uint256) {
        return some == all ? pay : (pay * some.ones()) / all.ones();
    }

    function _owe(Payroll memory r, address to, uint256 due) private pure {
        if (due > r.left) due = r.left;
        r.left -= due;
        r.payments[r.paid++] = IBonds.Payment(to, uint128(due)); // part of what is taken, in 128 bits
    }

    /// @dev Charges one juror's pay to each that neither voted nor abstained while it could.
    function _chargeSilent(Payroll memory r, uint256 run, address seat, uint256 number, Payout calldata x, uint256 pay)
        private
    {
        uint256 heard = x.excused;
        for (uint256 i; i < x.ballots.length; ++i) {
            heard |= x.ballots[i].jurors;
        }
        for (uint256 place; place < _places[run]; ++place) {
            address who = rosters[run][place];
            if (bitOf(run, who, x.earliest) & ~heard != 0) {
                emit Silent(run, seat, number, who, _lose(r, run, who, pay));
            }
        }
    }

    /// @dev Takes `amount` of a validator's lock, or what is left of it.
    function _lose(Payroll memory r, uint256 run, address validator, uint256 amount) private returns (uint256) {
        Validator storage v = _validators[run][validator];
        uint256 locked = v.locked;
        if (amount > locked) amount = locked;
        v.locked = uint128(locked - amount); // at most locked
        _charge(r, validator, amount);
        return amount;
    }

    function _charge(Payroll memory r, address who, uint256 amount) private pure {
        r.left += amount;
        r.charges[r.charged++] = IBonds.Payment(who, uint128(amount)); // at most what it has locked
    }

    // ---- shared -----------------------------------------------------------------------------------------------------

    /// @dev Whether a validator is of the bench of what was submitted at `time`: seated before, and serving until every case on it is over.
    function _onBench(uint256 run, Validator storage v, uint256 time) private view returns (bool) {
        (uint256 since, uint256 until) = (v.since, v.until);
        return since != 0 && since < time && (until == 0 || until >= time + _terms[run].span);
    }

    function _sit(uint256 run, address validator, uint256 time, uint256 bond) private {
        Validator storage v = _validators[run][validator];
        if (!_onBench(run, v, time)) revert NotOnBench(validator);
        if (_terms[run].juryFee == 0) return; // verdicts are instant
        uint256 needed = v.atRisk + bond;
        if (needed > v.locked) revert InsufficientStake(v.locked, needed);
        v.atRisk = uint128(needed); // at most locked
    }

    function _rise(uint256 run, address challenger, address coSigner, address appellant, uint256 bond) private {
        // what was added to it
        _validators[run][challenger].atRisk -= uint128(bond);
        if (coSigner != address(0)) _validators[run][coSigner].atRisk -= uint128(bond);
        if (appellant != address(0)) _validators[run][appellant].atRisk -= _terms[run].bond;
    }

    function _time(uint256 time) private pure returns (uint40) {
        return uint40(time); // block time plus six spans of 32 bits fits 40 bits until the year 36,000
    }

    function _permanent(Validator storage v) private view returns (bool) {
        return v.since != 0 && v.until == 0;
    }

    /// @dev Sets the end of a validator's service: when what was submitted by now can no longer be in a case.
    function _retire(uint256 run, address validator, Validator storage v) private {
        v.until = _time(block.timestamp + _terms[run].span);
        _level(run, seated(run) - 1);
        emit ValidatorSeated(run, validator, false, v.until);
    }

    function _level(uint256 run, uint256 many) private {
        Level[] storage levels = _levels[run];
        (uint256 last, Level memory now_) = (levels.length, Level(_time(block.timestamp), uint8(many))); // at most PLACES
        if (last != 0 && levels[last - 1].since == block.timestamp) levels[last - 1] = now_;
        else levels.push(now_);
    }

    function _lock(uint256 run, Validator storage v, uint128 amount) private {
        v.locked += amount;
        emit ValidatorReinforced(run, msg.sender, v.locked);
        bonds.lock(msg.sender, amount);
    }
}
