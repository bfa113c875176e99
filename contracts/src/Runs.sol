// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Bonds} from "./Bonds.sol";
import {Denied, NoSuchRun, TooEarly, TooLate, WrongState, ZeroAmount} from "./interfaces/Errors.sol";
import {IBonds} from "./interfaces/IBonds.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {Ring} from "./Ring.sol";
import {Transfers} from "./Transfers.sol";
import {Typed} from "./Typed.sol";
import {Works} from "./Works.sol";

/// @title Training runs
/// @notice See IRuns.
contract Runs is IRuns {
    using SafeERC20 for IERC20;
    using Ring for uint256;

    /// @dev All that submitting work reads of a run, in one word: a copy of the policy's, and when to look at the status.
    struct Limits {
        uint96 reward;
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
        uint16 leverage;
        address trainer;
        uint40 span; // window + appeal + vote
        address gate;
        uint128 nodeStake;
        uint128 floor; // penalty + bond
    }

    /// @dev Sequence numbers to be used up.
    struct Turn {
        uint256 step;
        uint256 sequence;
        uint256 many;
        bytes32 beacon;
    }

    bytes32 private constant JOIN =
        keccak256("Join(uint256 run,address operator,address node,bytes32 peer,uint8 hardware,uint256 deadline)");
    bytes32 private constant INVITE = keccak256("Invite(uint256 run,address node,uint256 deadline)");

    /// @inheritdoc IRuns
    IERC20 public immutable token;
    /// @inheritdoc IRuns
    IBonds public immutable bonds;
    /// @inheritdoc IRuns
    ICourt public immutable court;
    /// @inheritdoc IRuns
    uint256 public count;
    mapping(uint256 run => Charter) internal _charters;
    mapping(uint256 run => Limits) internal _limits;
    /// @inheritdoc IRuns
    mapping(uint256 run => bytes32) public specDigests;
    mapping(uint256 run => Status) internal _statuses;
    mapping(uint256 run => Funds) internal _funds;
    mapping(uint256 run => mapping(uint32 step => Publication)) internal _publications;
    mapping(uint256 run => mapping(address seat => Seat)) internal _seats;
    mapping(uint256 run => mapping(address key => address seat)) internal _names; // of keys rotated in
    /// @inheritdoc IRuns
    mapping(uint256 run => mapping(address seat => address)) public offers;
    mapping(bytes32 work => Work) internal _works;

    modifier onlyOwner(uint256 run) {
        if (msg.sender != _charters[run].owner) revert Denied(msg.sender);
        _;
    }

    modifier onlyCourt() {
        if (msg.sender != address(court)) revert Denied(msg.sender);
        _;
    }

    /// @param court_ Where Court will be deployed next; its constructor checks that it is there.
    constructor(IERC20 token_, uint64 delay, address sink, ICourt court_) {
        (token, court) = (token_, court_);
        bonds = new Bonds(token_, delay, sink, address(this), address(court_));
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
    function paused(uint256 run) external view returns (bool) {
        return _reached(_statuses[run].pausedFrom);
    }

    /// @inheritdoc IRuns
    function published(uint256 run) external view returns (uint32) {
        return _statuses[run].published;
    }

    /// @inheritdoc IRuns
    function publications(uint256 run, uint32 step) external view returns (Publication memory) {
        return _publications[run][step];
    }

    /// @inheritdoc IRuns
    function seats(uint256 run, address node) external view returns (Seat memory) {
        return _seats[run][seatOf(run, node)];
    }

    /// @inheritdoc IRuns
    function seatOf(uint256 run, address node) public view returns (address seat) {
        if (_seats[run][node].role == Role.None) seat = _names[run][node];
        if (seat == address(0)) seat = node;
    }

    /// @inheritdoc IRuns
    function works(bytes32 work) external view returns (Work memory) {
        return _works[work];
    }

    /// @inheritdoc IRuns
    function workId(uint256 run, Ref calldata ref) external pure returns (bytes32) {
        return Works.id(run, ref);
    }

    /// @inheritdoc IRuns
    function claimable(uint256 run, address node) external view returns (uint256 ready, uint256 pending) {
        _requireRun(run);
        Seat storage s = _seats[run][seatOf(run, node)];
        (uint256 ring, uint256 matured) = s.ring.roll(Ring.epochAt(block.timestamp, _limits[run].window));
        uint256 all = s.vested + matured;
        ready = s.openHard == 0 ? all : s.safe;
        pending = ring.sum() + s.held + all - ready;
    }

    function _requireRun(uint256 run) private view {
        if (run == 0 || run > count) revert NoSuchRun(run);
    }

    /// @dev Whether a time that was set has come.
    function _reached(uint40 time) private view returns (bool) {
        return time != 0 && block.timestamp >= time;
    }

    // ---- runs -------------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function create(Policy calldata p, bytes32 specDigest) external returns (uint256 run) {
        if (specDigest == 0) revert InvalidPolicy("specDigest");
        run = ++count;
        court.open(run, p); // refuses what is out of range
        _limits[run] = Limits(p.reward, p.window, p.grace, p.maxUnits, p.maxPerStep, p.strikes, 0);
        _charters[run] = Charter({
            owner: p.owner,
            notice: p.notice,
            leverage: p.leverage,
            trainer: p.trainer,
            span: uint40(p.window) + p.appeal + p.vote,
            gate: p.gate,
            nodeStake: p.nodeStake,
            floor: p.penalty + p.bond // at most nodeStake
        });
        specDigests[run] = specDigest;
        emit RunCreated(run, p.owner, specDigest, p);
    }

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

    /// @dev Sets when announcements take effect, and from when submitting has to mind them.
    function _change(uint256 run, uint40 pausedFrom, uint40 defundedFrom) private {
        Status storage st = _statuses[run];
        (st.pausedFrom, st.defundedFrom) = (pausedFrom, defundedFrom);
        bool first = pausedFrom != 0 && (defundedFrom == 0 || pausedFrom < defundedFrom);
        _limits[run].changed = first ? pausedFrom : defundedFrom;
    }

    /// @inheritdoc IRuns
    function publish(uint256 run, uint32 step, bytes32 manifest) external {
        uint32 heads = _statuses[run].published;
        if (msg.sender != _charters[run].trainer) revert Denied(msg.sender);
        if (manifest == 0) revert WrongState();
        if (step != heads) revert WrongStep(step, heads);
        court.requireJury(run);
        bytes32 beacon = keccak256(abi.encode(blockhash(block.number - 1), run, step, manifest));
        uint64 time = uint64(block.timestamp); // block number and time fit 64 bits
        _publications[run][step] = Publication(manifest, beacon, uint64(block.number), time, 0);
        if (step != 0) _publications[run][step - 1].superseded = time;
        _statuses[run].published = heads + 1;
        emit Published(run, step, manifest, beacon);
    }

    /// @dev When an announcement of the owner takes effect.
    function _noticed(uint256 run) private view returns (uint40) {
        return uint40(block.timestamp + _charters[run].notice); // block time fits 40 bits until the year 36,812
    }

    // ---- seats ------------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function join(
        uint256 run,
        address node,
        bytes calldata peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata nodeSig,
        bytes calldata gateSig
    ) external {
        _requireRun(run);
        address gate = _charters[run].gate;
        Seat storage s = _seats[run][seatOf(run, node)];
        if (s.role == Role.Banned) revert WrongState();
        if (s.role != Role.None && s.operator != msg.sender) revert Denied(msg.sender);
        if (s.rotated && s.key != node) revert Denied(node);
        _requireConsent(run, node, peer, hardware, deadline, nodeSig);
        if (gate != address(0)) {
            bytes32 content = keccak256(abi.encode(INVITE, run, node, deadline));
            if (!Typed.signedBy(address(this), content, gate, gateSig)) revert Denied(gate);
        }
        (s.operator, s.role, s.hardware, s.since, s.until) = (msg.sender, Role.Active, hardware, _block(), 0);
        emit Joined(run, node, msg.sender, peer, hardware);
        _lockUp(run, s);
    }

    /// @inheritdoc IRuns
    function rotate(
        uint256 run,
        address node,
        address newNode,
        bytes calldata peer,
        uint256 deadline,
        bytes calldata nodeSig
    ) external {
        (address seat, Seat storage s) = _operated(run, node);
        if (_seats[run][newNode].role != Role.None || _names[run][newNode] != address(0)) revert WrongState();
        _requireConsent(run, newNode, peer, s.hardware, deadline, nodeSig);
        _names[run][newNode] = seat;
        (s.rotated, s.key, s.since) = (true, newNode, _block());
        emit Rotated(run, newNode, seat, peer);
    }

    /// @inheritdoc IRuns
    function offer(uint256 run, address node, address to) external {
        (address seat,) = _operated(run, node);
        offers[run][seat] = to;
        emit Offered(run, seat, to);
    }

    /// @inheritdoc IRuns
    function accept(uint256 run, address node) external {
        address seat = seatOf(run, node);
        if (msg.sender != offers[run][seat]) revert Denied(msg.sender);
        Seat storage s = _seats[run][seat];
        address from = s.operator;
        delete offers[run][seat];
        (s.operator, s.since) = (msg.sender, _block());
        emit HandedOver(run, seat, msg.sender, from);
        bonds.move(from, msg.sender, s.locked);
    }

    /// @inheritdoc IRuns
    function leave(uint256 run, address node) external {
        address seat = seatOf(run, node);
        Seat storage s = _seats[run][seat];
        if (!_serves(s)) revert WrongState();
        if (msg.sender != s.operator && s.locked >= _charters[run].floor) revert Denied(msg.sender);
        _end(run, seat, s, s.role == Role.Active ? Role.Left : s.role, block.timestamp);
    }

    /// @inheritdoc IRuns
    function ban(uint256 run, address node) external onlyOwner(run) {
        address seat = seatOf(run, node);
        Seat storage s = _seats[run][seat];
        if (s.role != Role.Active && s.role != Role.Left) revert WrongState();
        _end(run, seat, s, Role.Banned, s.role == Role.Active ? _noticed(run) : s.until);
    }

    /// @inheritdoc IRuns
    function release(uint256 run, address node) external {
        address seat = seatOf(run, node);
        Seat storage s = _seats[run][seat];
        (address operator, uint128 amount, uint256 from, uint256 openCases) =
            (s.operator, s.locked, s.until, s.openCases);
        if (from == 0 || amount == 0) revert WrongState();
        if (openCases != 0) revert CaseOpen(openCases);
        from += _charters[run].span;
        if (block.timestamp < from) revert TooEarly(from);
        (s.locked, s.most) = (0, 0);
        emit Released(run, seat, operator, amount);
        bonds.unlock(operator, amount);
    }

    /// @dev The node's word that it works for the caller. Nodes are secp256k1 keys (the same as their PeerID), never contracts.
    function _requireConsent(
        uint256 run,
        address node,
        bytes calldata peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata nodeSig
    ) private view {
        if (block.timestamp > deadline) revert TooLate(deadline);
        bytes32 content = keccak256(abi.encode(JOIN, run, msg.sender, node, keccak256(peer), hardware, deadline));
        if (!Typed.signedByKey(address(this), content, node, nodeSig)) revert Denied(node);
    }

    /// @dev The seat of `node`, if the caller operates it.
    function _operated(uint256 run, address node) private view returns (address seat, Seat storage s) {
        seat = seatOf(run, node);
        s = _seats[run][seat];
        if (msg.sender != s.operator) revert Denied(msg.sender);
    }

    function _serves(Seat storage s) private view returns (bool) {
        return s.role == Role.Active || (s.role == Role.Banned && block.timestamp < s.until);
    }

    /// @dev Locks what is missing of the caller's stake.
    function _lockUp(uint256 run, Seat storage s) private {
        (uint128 locked, uint128 wanted) = (s.locked, _charters[run].nodeStake);
        if (locked >= wanted) return;
        _cover(run, s, wanted);
        bonds.lock(msg.sender, wanted - locked);
    }

    /// @dev Sets what a seat has locked, and with it how many units it may have at risk of a verdict: as many as its stake
    /// answers for, and as many as a ring can hold.
    function _cover(uint256 run, Seat storage s, uint128 locked) private {
        (uint256 reward, uint256 most) = (_limits[run].reward, type(uint32).max);
        uint256 worth = uint256(locked) * _charters[run].leverage;
        if (most * reward > worth) most = worth / reward;
        (s.locked, s.most) = (locked, uint32(most)); // at most 32 bits: see above
    }

    function _end(uint256 run, address seat, Seat storage s, Role role, uint256 until) private {
        (s.role, s.until) = (role, uint40(until)); // a block time, or one of _noticed
        emit Left(run, seat, role, until);
    }

    function _block() private view returns (uint40) {
        return uint40(block.number); // a block a millisecond would fill 40 bits in 34 years; chains make one a second
    }

    // ---- work -------------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function submit(uint256 run, bytes32 root, uint32 step, uint32 sequence, uint32 units, bytes32 beacon) external {
        Limits memory l = _limitsOf(run);
        _commit(run, l, Turn(step, sequence, 1, beacon), units);
        _record(run, l, Ref(msg.sender, step, sequence, root), units);
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
            _record(run, l, Ref(msg.sender, step, sequence + i, items[i].root), items[i].units);
        }
    }

    /// @inheritdoc IRuns
    function skip(uint256 run, uint32 step, uint32 sequence, bytes32 beacon) external {
        Limits memory l = _limitsOf(run);
        _strike(_commit(run, l, Turn(step, sequence, 1, beacon), 0), l, 1);
        emit Skipped(run, msg.sender, step, sequence);
    }

    function _record(uint256 run, Limits memory l, Ref memory ref, uint32 units) private {
        if (units == 0 || units > l.maxUnits) revert InvalidUnits(units, l.maxUnits);
        _works[Works.id(run, ref)] = Work(uint40(block.timestamp), units, 0); // time fits as in _noticed
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
        if (exposed > s.most) revert Overexposed(exposed, s.most);
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
    function _headBlock(uint256 run, Limits memory l, Turn memory turn) private view returns (uint256 number) {
        Publication storage head = _publications[run][uint32(turn.step)]; // was a uint32
        uint256 superseded;
        (number, superseded) = (head.blockNumber, head.superseded);
        if (number == 0 || (superseded != 0 && block.timestamp >= superseded + l.grace)) {
            revert WrongStep(turn.step, _statuses[run].published);
        }
        if (head.beacon != turn.beacon) revert WrongBeacon(turn.beacon, head.beacon);
    }

    /// @dev The caller's seat, if it may work now on weights published in block `published_`.
    function _worker(uint256 run, Limits memory l, uint256 published_) private view returns (Seat storage s) {
        s = _seats[run][msg.sender];
        if (s.role == Role.None) s = _seats[run][_names[run][msg.sender]];
        if (!_serves(s) || (s.rotated && s.key != msg.sender)) revert Denied(msg.sender);
        if (s.since >= published_) revert SeatTooYoung(s.since, published_);
        (uint256 openHard, uint256 strikes, uint256 pardon) = (s.openHard, s.strikes, s.strikesSince);
        if (openHard != 0) revert CaseOpen(openHard);
        pardon += l.window;
        if (strikes >= l.strikes && block.timestamp < pardon) revert Suspended(pardon);
    }

    /// @dev Moves `owed` from the free budget to the reserve, minding what the owner announced.
    function _reserve(uint256 run, Limits memory l, uint256 owed) private {
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

    function _limitsOf(uint256 run) private view returns (Limits memory) {
        return _limits[run];
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
        Limits memory l = _limitsOf(run);
        address seat = seatOf(run, node);
        Seat storage s = _seats[run][seat];
        if (s.role == Role.None) revert WrongState();
        s.ring = _rolled(s, Ring.epochAt(block.timestamp, l.window));
        uint64 units = s.openHard == 0 ? s.vested : s.safe;
        s.vested -= units;
        s.safe = 0;
        amount = uint256(units) * l.reward;
        _funds[run].reserved -= uint128(amount); // what was reserved for these units, in 128 bits
        emit Claimed(run, seat, s.operator, units, amount);
        token.safeTransfer(s.operator, amount);
    }

    // ---- Court only -------------------------------------------------------------------------------------------------

    /// @inheritdoc IRuns
    function withhold(uint256 run, Ref[] calldata list) external onlyCourt returns (Withheld memory x) {
        uint256 window = _limits[run].window;
        uint256 epoch = Ring.epochAt(block.timestamp, window);
        x.seat = seatOf(run, list[0].node);
        Seat storage s = _seats[run][x.seat];
        x.number = _openCase(s);
        uint256 own = _rolled(s, epoch);
        (x.ring,) = x.ring.roll(epoch);
        x.earliest = block.timestamp;
        for (uint256 i; i < list.length; ++i) {
            if (list[i].node != list[0].node && seatOf(run, list[i].node) != x.seat) revert Denied(list[i].node);
            Work storage w = _works[Works.id(run, list[i])];
            (uint256 time, uint256 units, uint256 before) = (w.time, w.units, w.number);
            if (time == 0 || before != 0 || block.timestamp >= time + window) continue;
            w.number = uint24(x.number); // as in _openCase
            x.taken |= 1 << i;
            if (time < x.earliest) x.earliest = time;
            uint256 born = Ring.epochAt(time, window);
            (own, x.ring) = (own.sub(born, units), x.ring.add(born, units));
        }
        if (x.taken == 0) revert WrongState();
        s.ring = own;
        s.held += uint32(x.ring.sum()); // the units of a seat fit 32 bits together: see _cover
    }

    /// @inheritdoc IRuns
    function accuse(uint256 run, address seat, bytes32 work, Whereabouts units)
        external
        onlyCourt
        returns (uint256 number, uint256 ring)
    {
        uint256 window = _limits[run].window;
        uint256 epoch = Ring.epochAt(block.timestamp, window);
        Seat storage s = _seats[run][seat];
        Work storage w = _works[work];
        number = _openCase(s);
        uint256 own = _rolled(s, epoch);
        if (s.openHard++ == 0) s.safe = s.vested; // nothing that matures from here on is paid
        if (units != Whereabouts.Revoked) w.number = uint24(number); // as in _openCase
        if (units == Whereabouts.Seat) {
            uint256 born = Ring.epochAt(w.time, window);
            (ring,) = ring.roll(epoch);
            (own, ring) = (own.sub(born, w.units), ring.add(born, w.units));
            s.held += w.units;
        }
        s.ring = own;
    }

    /// @inheritdoc IRuns
    function settle(uint256 run, address seat, Ruling calldata r)
        external
        onlyCourt
        returns (uint256 units, uint256 slashed)
    {
        Limits memory l = _limitsOf(run);
        Seat storage s = _seats[run][seat];
        --s.openCases;
        if (r.hard) --s.openHard;
        // a conviction has taken everything, and the penalty: cases beside it only close, or cost a lost appeal
        bool swept = s.swept;
        if (r.bond != 0) slashed = _take(run, s, swept ? 0 : r.penalty, r.bond, r.challenger, r.finderBps);
        if (swept) return (0, slashed);
        uint256 own = _rolled(s, Ring.epochAt(block.timestamp, l.window));
        if (r.hard && r.verdict == ICourt.Stage.Upheld) {
            units = own.sum() + s.held + (s.vested - s.safe);
            own = own.clear();
            (s.vested, s.held, s.swept) = (s.safe, 0, true);
            _end(run, seat, s, Role.Banned, _serves(s) ? block.timestamp : s.until);
            slashed += _take(run, s, 0, r.penalty, r.challenger, r.finderBps);
        } else {
            units = r.ring.sum();
            s.held -= uint32(units); // part of what was added to it
            if (r.verdict == ICourt.Stage.Cleared) {
                (own, units) = own.merge(r.ring);
                s.vested += uint64(units); // as in _rolled
                units = 0;
            } else if (r.verdict == ICourt.Stage.Upheld) {
                uint256 fee = _strike(s, l, r.works) * r.fee;
                slashed += _take(run, s, r.penalty, uint128(fee), r.challenger, 10_000); // 8 * 96 bits
            }
        }
        s.ring = own;
        if (units != 0) _revoke(run, units * l.reward);
    }

    /// @dev Gives back to the budget what was reserved.
    function _revoke(uint256 run, uint256 amount) private {
        Funds storage f = _funds[run];
        (uint256 free, uint256 reserved) = (f.free, f.reserved);
        (free, reserved) = (free + amount, reserved - amount);
        (f.free, f.reserved) = (uint128(free), uint128(reserved)); // their sum fits 128 bits: see fund
    }

    /// @dev Counts a new case against a seat that still has something to lose.
    function _openCase(Seat storage s) private returns (uint256 number) {
        uint256 openCases;
        (number, openCases) = (s.cases, s.openCases);
        if (s.swept) revert WrongState();
        (number, openCases) = (number + 1, openCases + 1);
        if (number > type(uint24).max || openCases > type(uint16).max) revert WrongState();
        (s.cases, s.openCases) = (uint24(number), uint16(openCases)); // checked just above
    }

    /// @dev Slashes up to `amount` of what the seat locked, leaving `senior` for the penalty.
    function _take(uint256 run, Seat storage s, uint128 senior, uint128 amount, address finder, uint16 finderBps)
        private
        returns (uint128 taken)
    {
        uint128 locked = s.locked;
        uint128 most = locked > senior ? locked - senior : 0;
        if (amount < most) most = amount;
        if (most == 0) return 0;
        taken = bonds.slash(s.operator, most, finder, finderBps);
        _cover(run, s, locked - taken);
    }
}
