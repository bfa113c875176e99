// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Denied, WrongState} from "./interfaces/Errors.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {Budgets} from "./Budgets.sol";
import {Ring} from "./Ring.sol";
import {Seats} from "./Seats.sol";
import {Submissions} from "./Submissions.sol";

/// @title Training runs
/// @notice Submissions, their rewards, and what verdicts do to both; Budgets and Seats hold the rest. See IRuns.
contract Runs is Seats {
    using SafeERC20 for IERC20;
    using Ring for uint256;

    /// @dev Sequence numbers to be used up.
    struct Turn {
        uint256 step;
        uint256 sequence;
        uint256 many;
        bytes32 beacon;
    }

    /// @dev Submissions that a case takes, and the time in which they have one bench.
    struct Batch {
        uint256 many;
        uint256 from;
        uint256 until;
    }

    mapping(bytes32 submission => Submission) internal _submissions;

    modifier onlyCourt() {
        _only(address(court));
        _;
    }

    /// @param court_ Where Court will be deployed next; its constructor checks that it is there.
    constructor(IERC20 token_, uint64 delay, address sink, ICourt court_) Budgets(token_, delay, sink, court_) {}

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function submissions(bytes32 submission) external view returns (Submission memory) {
        return _submissions[submission];
    }

    /// @inheritdoc IRuns
    function claimable(uint256 run, address node) external view returns (uint256 ready, uint256 pending) {
        _requireRun(run);
        (, Seat storage s) = _seatOf(run, node);
        (uint256 ring, uint256 matured) = s.ring.roll(Ring.epochAt(block.timestamp, _limits[run].window));
        uint256 all = s.vested + matured;
        ready = s.openHard == 0 ? all : s.safe;
        pending = ring.sum() + s.held + all - ready;
    }

    // ---- submissions -------------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function submit(uint256 run, bytes32 root, uint32 step, uint32 sequence, uint32 units, bytes32 beacon) external {
        Limits memory l = _limitsOf(run);
        _commit(run, l, Turn(step, sequence, 1, beacon), units);
        _record(run, l, SubmissionRef(msg.sender, step, sequence, root), units);
    }

    /// @inheritdoc IRuns
    function submitMany(uint256 run, uint32 step, uint32 sequence, bytes32 beacon, Item[] calldata items) external {
        uint256 units;
        for (uint256 i; i < items.length; ++i) {
            units += items[i].units;
        }
        Limits memory l = _limitsOf(run);
        _commit(run, l, Turn(step, sequence, items.length, beacon), units);
        for (uint32 i; i < items.length; ++i) {
            _record(run, l, SubmissionRef(msg.sender, step, sequence + i, items[i].root), items[i].units);
        }
    }

    /// @inheritdoc IRuns
    function skip(uint256 run, uint32 step, uint32 sequence, bytes32 beacon) external {
        Limits memory l = _limitsOf(run);
        _strike(_commit(run, l, Turn(step, sequence, 1, beacon), 0), l, 1);
        emit Skipped(run, msg.sender, step, sequence);
    }

    function _record(uint256 run, Limits memory l, SubmissionRef memory ref, uint32 units) private {
        if (units == 0 || units > l.maxUnits) revert InvalidUnits(units, l.maxUnits);
        _submissions[Submissions.id(run, ref)] = Submission(uint40(block.timestamp), units, 0, 0); // time fits as in _noticed
        emit Submitted(run, ref.node, ref.root, ref.step, ref.sequence, units);
    }

    /// @dev Uses up sequence numbers of the caller's seat, and reserves the reward of `units`.
    function _commit(uint256 run, Limits memory l, Turn memory turn, uint256 units) private returns (Seat storage s) {
        s = _worker(run, l, _headBlock(run, l, turn));
        _reserve(run, l, units * l.reward);
        uint256 epoch = Ring.epochAt(block.timestamp, l.window);
        (uint256 ring, uint256 matured) = s.ring.roll(epoch);
        (uint256 exposed, uint256 vested, uint256 step, uint256 next) = (s.held, s.vested, s.step, s.next);
        exposed += ring.sum() + units;
        uint256 most = _most(s, l);
        if (exposed > most) revert Overexposed(exposed, most);
        // `next` tells a seat that never worked (0) from one that worked on step 0 (at least 1)
        if (turn.step < step && next != 0) revert WrongStep(turn.step, step); // a step left behind is not returned to
        if (turn.step != step) next = 0;
        // with none at all the seat would move to a new step without a trace
        if (turn.sequence != next || turn.many == 0) revert WrongSequence(turn.sequence, next);
        (next, vested) = (next + turn.many, vested + matured);
        if (next > l.maxPerStep) revert WrongSequence(next - 1, l.maxPerStep - 1);
        s.ring = ring.add(epoch, units);
        // vested as in _rolled; step was a uint32; next is at most maxPerStep, a uint16
        (s.vested, s.step, s.next) = (uint64(vested), uint32(turn.step), uint16(next));
    }

    /// @dev The block that published the weights of `turn`, if they are current.
    function _headBlock(uint256 run, Limits memory l, Turn memory turn) private returns (uint256) {
        uint32 step = uint32(turn.step); // was a uint32
        Head storage head = _heads[run][step];
        (bytes17 beacon, uint256 superseded, uint256 number) = (head.beacon, head.superseded, head.number);
        if (number == 0 || (superseded != 0 && block.timestamp >= superseded + l.grace)) revert StaleStep(step);
        if (beacon == 0) {
            weights.draw(run, step);
            beacon = head.beacon;
        }
        // a draw that came too late has only named another block: there is no beacon yet
        if (beacon == 0 || beacon != turn.beacon) revert WrongBeacon(turn.beacon, beacon);
        return number;
    }

    /// @dev The caller's seat, if it may work now on weights published in block `published_`.
    function _worker(uint256 run, Limits memory l, uint256 published_) private view returns (Seat storage s) {
        (, s) = _seatOf(run, msg.sender);
        if (!_serves(s) || (s.rotated && s.key != msg.sender)) revert Denied(msg.sender);
        if (s.since >= published_) revert SeatTooYoung(s.since, published_);
        (uint256 openHard, uint256 strikes, uint256 pardon) = (s.openHard, s.strikes, s.strikesSince);
        if (openHard != 0 && block.timestamp < s.shutUntil) revert CaseOpen(openHard);
        pardon += l.window;
        if (strikes >= l.strikes && block.timestamp < pardon) revert Suspended(pardon);
    }

    function _rolled(Seat storage s, uint256 epoch) private returns (uint256 ring) {
        uint256 matured;
        (ring, matured) = s.ring.roll(epoch);
        // an epoch lasts a second or more and its bucket has 32 bits: 64 bits last 136 years at the very least
        if (matured != 0) s.vested += uint64(matured);
    }

    /// @dev Counts strikes of the present window, up to the number that suspends.
    /// @return counted How many of `many` found room.
    function _strike(Seat storage s, Limits memory l, uint256 many) private returns (uint256 counted) {
        (uint256 strikes, uint256 since) = (s.strikes, s.strikesSince);
        if (block.timestamp >= since + l.window) (strikes, since) = (0, block.timestamp);
        counted = l.strikes - strikes;
        if (many < counted) counted = many;
        strikes += counted;
        (s.strikes, s.strikesSince) = (uint8(strikes), uint40(since)); // at most l.strikes, a uint8; a block time
    }

    // ---- rewards ----------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function claim(uint256 run, address node) external returns (uint256 amount) {
        Limits storage l = _limits[run];
        (address seat, Seat storage s) = _seatOf(run, node);
        address operator = s.operator;
        if (operator == address(0)) revert WrongState();
        (uint256 ring, uint256 vested) = s.ring.roll(Ring.epochAt(block.timestamp, l.window));
        vested += s.vested;
        uint256 units = vested;
        if (s.openHard != 0) (units, s.safe) = (s.safe, 0);
        uint256 proven = s.proven + units;
        if (proven > type(uint32).max) proven = type(uint32).max;
        // what is left of the vested, as in _rolled; see above
        (s.ring, s.vested, s.proven) = (ring, uint64(vested - units), uint32(proven));
        amount = units * l.reward;
        _funds[run].reserved -= uint128(amount); // what was reserved for these units, in 128 bits
        emit Claimed(run, seat, operator, units, amount);
        token.safeTransfer(operator, amount);
    }

    // ---- Court only -------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function withhold(uint256 run, SubmissionRef[] calldata list) external onlyCourt returns (Withheld memory x) {
        uint256 window = _limits[run].window;
        uint256 epoch = Ring.epochAt(block.timestamp, window);
        Seat storage s;
        (x.seat, s) = _seatOf(run, list[0].node);
        if (s.swept) revert WrongState(); // nothing is left to take
        x.number = _openCase(s);
        uint256 own = _rolled(s, epoch);
        (x.ring,) = x.ring.roll(epoch);
        x.earliest = block.timestamp;
        x.parcels = new uint256[]((list.length + 7) / 8);
        Batch memory b = Batch(0, 0, block.timestamp);
        for (uint256 i; i < list.length; ++i) {
            if (list[i].node != list[0].node && seatOf(run, list[i].node) != x.seat) revert Denied(list[i].node);
            Submission storage w = _submissions[Submissions.id(run, list[i])];
            (uint256 time, uint256 units, uint256 before) = (w.time, w.units, w.number);
            if (time == 0 || before != 0 || block.timestamp >= time + window) continue;
            if (b.many == 0 && list.length > 1) (b.from, b.until) = bench.termOf(run, time);
            if (time < b.from || time > b.until) continue;
            (w.number, w.index) = (uint24(x.number), uint8(b.many)); // as in _openCase; Court allows 255
            x.taken |= 1 << i;
            if (time < x.earliest) x.earliest = time;
            uint256 born = Ring.epochAt(time, window);
            x.parcels[b.many / 8] |= (units | ((born % Ring.BUCKETS) << 29)) << (32 * (b.many % 8));
            ++b.many;
            (own, x.ring) = (own.sub(born, units), x.ring.add(born, units));
        }
        if (b.many == 0) revert WrongState();
        s.ring = own;
        s.held += uint32(x.ring.sum()); // the units of a seat fit 32 bits together: see _cover
    }

    /// @inheritdoc IRuns
    function accuse(uint256 run, address seat, bytes32 submission, Whereabouts units)
        external
        onlyCourt
        returns (uint256 number, uint256 ring, bool moved)
    {
        uint256 window = _limits[run].window;
        uint256 epoch = Ring.epochAt(block.timestamp, window);
        Seat storage s = _seats[run][seat];
        Submission storage w = _submissions[submission];
        number = _openCase(s);
        uint256 own = _rolled(s, epoch);
        if (s.openHard++ == 0) s.safe = s.vested; // nothing that matures from here on is paid
        if (block.timestamp >= uint256(s.shutUntil) + _charters[run].span) {
            s.shutUntil = uint40(block.timestamp + _charters[run].trial); // fits as in _noticed
        }
        moved = units != Whereabouts.Revoked && !s.swept;
        if (moved) (w.number, w.index) = (uint24(number), 0); // as in _openCase
        if (moved && units == Whereabouts.Seat) {
            uint256 born = Ring.epochAt(w.time, window);
            (ring,) = ring.roll(epoch);
            (own, ring) = (own.sub(born, w.units), ring.add(born, w.units));
            s.held += w.units;
        }
        s.ring = own;
    }

    /// @inheritdoc IRuns
    function settle(uint256 run, address seat, Ruling calldata r) external onlyCourt returns (Outcome memory o) {
        Limits memory l = _limitsOf(run);
        Seat storage s = _seats[run][seat];
        bool accused = s.openHard != 0;
        if (r.over) --s.openCases;
        if (r.unshut) --s.openHard;
        o.operator = s.operator;
        if (r.cost != 0) o.slashed = o.paid = _payForAppeal(l, s, r); // Bonds hears of it from the bench
        // a conviction has taken everything, and the penalty: cases beside it only close, or cost a lost appeal
        if (s.swept) return o;
        uint256 own = _rolled(s, Ring.epochAt(block.timestamp, l.window));
        if (r.convicts) {
            uint64 safe = accused ? s.safe : s.vested; // what had matured before anybody accused it
            o.units = own.sum() + s.held + (s.vested - safe);
            own = own.clear();
            (s.vested, s.safe, s.held, s.swept) = (safe, safe, 0, true);
            uint256 due = r.penalty - s.spent;
            s.spent = r.penalty;
            _end(run, seat, s, Role.Banned, _serves(s) ? block.timestamp : s.until);
            o.slashed += _take(l, s, 0, due, r.challenger, r.finderBps);
        } else {
            o.units = r.revoked;
            s.held -= uint32(r.revoked + r.back.sum()); // parts of what was added to it
            uint256 matured;
            if (r.back != 0) (own, matured) = own.merge(r.back);
            if (matured != 0) s.vested += uint64(matured); // as in _rolled
            uint256 fee = r.strikes == 0 ? 0 : _strike(s, l, r.strikes) * r.fee;
            if (fee != 0) o.slashed += _take(l, s, r.penalty, fee, r.challenger, r.finderBps);
        }
        s.ring = own;
        if (o.units != 0) _revoke(run, o.units * l.reward);
    }

    /// @dev Takes what a lost appeal costs out of the seat's lock. What the key alone lost comes out of the penalty, for that is all
    /// that a key can lose.
    function _payForAppeal(Limits memory l, Seat storage s, Ruling calldata r) private returns (uint256 paid) {
        uint256 locked = s.locked;
        paid = r.cost < locked ? r.cost : locked;
        if (r.keyed) {
            uint256 rest = r.penalty - s.spent;
            if (paid > rest) paid = rest;
            s.spent += uint96(paid); // at most the penalty
        }
        _stake(s, l.reward, locked - paid);
    }

    /// @dev Units that a seat may have at risk of a verdict.
    function _most(Seat storage s, Limits memory l) private view returns (uint256 most) {
        (uint256 worth, uint256 proven) = (s.worth, s.proven);
        most = worth * l.leverage;
        if (worth + proven < most) most = worth + proven;
        if (most > type(uint32).max) most = type(uint32).max;
    }

    /// @dev Counts a new case against a seat.
    function _openCase(Seat storage s) private returns (uint256 number) {
        uint256 openCases;
        (number, openCases) = (s.cases, s.openCases);
        (number, openCases) = (number + 1, openCases + 1);
        if (number > type(uint24).max || openCases > type(uint16).max) revert WrongState();
        (s.cases, s.openCases) = (uint24(number), uint16(openCases)); // checked just above
    }

    /// @dev Slashes up to `amount` of what the seat locked, leaving what is unspent of `penalty`.
    function _take(Limits memory l, Seat storage s, uint256 penalty, uint256 amount, address finder, uint16 finderBps)
        private
        returns (uint128 taken)
    {
        uint256 locked = s.locked;
        if (locked < penalty + amount) {
            // only then it matters how much of it is spent
            uint256 spared = penalty == 0 ? 0 : penalty - s.spent;
            uint256 most = locked > spared ? locked - spared : 0;
            if (amount > most) amount = most;
            if (amount == 0) return 0;
        }
        taken = bonds.slash(s.operator, uint128(amount), finder, finderBps); // at most locked, a uint96
        _stake(s, l.reward, locked - taken);
    }
}
