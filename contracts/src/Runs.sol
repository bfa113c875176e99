// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";
import {Bonds} from "./Bonds.sol";
import {Ring} from "./Ring.sol";

/// @title Training runs
/// @notice A run has an immutable policy, seats for nodes and validators, published weights with their beacons, committed
/// work, verdicts on it within a window, and rewards after the window.
/// @dev Balance of this contract = sum over runs of free + reserved; reserved = reward * all unclaimed units.
contract Runs is EIP712 {
    using SafeERC20 for IERC20;
    using Ring for uint256;

    // ---- types ------------------------------------------------------------------------------------------------------

    /// @notice Fixed for the life of a run.
    struct Policy {
        address owner; // funds the run, approves validators, may pause submissions and ban nodes
        uint32 window; // seconds in which work may be challenged
        uint32 appeal; // seconds in which a challenged operator may appeal; zero: verdicts are instant
        uint32 vote; // seconds in which validators vote on an appeal
        address trainer; // hot key that publishes weights, signs manifests and storage receipts
        uint32 grace; // seconds for which a superseded head still accepts work
        uint32 maxUnits; // largest claim in one submission
        uint32 maxPerStep; // most submissions of one seat for one step
        address gate; // signs invitations; zero: anyone with stake may join
        uint16 finderBps; // the challenger's share of a slash
        uint8 quorum; // votes that decide an appeal
        uint128 nodeStake; // locked per node seat
        uint128 validatorStake; // locked per validator seat
        uint128 penalty; // slashed on a hard verdict
        uint128 bond; // at risk for the loser of an appeal
        uint128 reward; // tokens per unit
    }

    struct Funds {
        uint128 free; // unspent
        uint128 reserved; // owed to units not yet claimed
    }

    /// @notice One version of the weights.
    struct Publication {
        bytes32 manifest; // hash of the signed SHARDCAST manifest
        bytes32 beacon; // seeds all work on this step; unknown to anybody before the block of publication
        uint64 blockNumber;
        uint64 time;
    }

    enum Role {
        None,
        Active,
        Left,
        Banned
    }

    struct Seat {
        address operator;
        Role role;
        uint8 hardware;
        uint8 openHard; // hard cases not yet settled
        bool swept; // a hard verdict took everything in the window
        uint64 since; // block in which the seat took its present form
        uint256 ring; // units within the window
        uint96 vested; // units matured and unclaimed
        uint96 safe; // of those, matured before the first open hard case
        uint32 step; // newest step worked on
        uint32 next; // next sequence number for that step
    }

    enum State {
        None,
        Submitted,
        Challenged,
        Appealed,
        Revoked,
        Cleared
    }

    struct Work {
        uint40 time;
        uint32 units;
        State state;
    }

    /// @notice Names a work; its id is the hash of this and the run.
    struct Ref {
        address node;
        uint32 step;
        uint32 sequence;
        bytes32 root; // SHA-256 of the rollout file
    }

    struct Case {
        address challenger;
        bool hard;
        uint40 deadline;
        uint8 uphold;
        uint8 reject;
        bytes32 evidence; // EIP-712 digest of the challenger's verdict
    }

    struct Item {
        bytes32 root;
        uint32 units;
    }

    // ---- errors -----------------------------------------------------------------------------------------------------

    error Denied();
    error InvalidPolicy();
    error NoSuchRun();
    error WrongState();
    error TooLate();
    error TooEarly();
    error InvalidUnits(uint256 units, uint256 most);
    error Unfunded(uint256 available, uint256 wanted);
    error WrongStep(uint256 step, uint256 expected);
    error WrongSequence(uint256 sequence, uint256 expected);
    error WrongBeacon();
    error SeatTooYoung(uint256 since, uint256 published);
    error RunPaused();
    error CaseOpen();

    // ---- events -----------------------------------------------------------------------------------------------------

    event RunCreated(uint256 indexed run, address indexed owner, bytes32 specDigest, Policy policy);
    event Funded(uint256 indexed run, int256 amount);
    event Paused(uint256 indexed run, bool paused);
    event Published(uint256 indexed run, uint32 indexed step, bytes32 manifest, bytes32 beacon);
    event Joined(uint256 indexed run, address indexed node, address indexed operator, bytes peer, uint8 hardware);
    event Left(uint256 indexed run, address indexed node, Role role);
    event ValidatorApproved(uint256 indexed run, address indexed validator, bool approved);
    event ValidatorSeated(uint256 indexed run, address indexed validator, bool seated);
    event Submitted(
        uint256 indexed run, address indexed node, bytes32 indexed root, uint32 step, uint32 sequence, uint32 units
    );
    event Skipped(uint256 indexed run, address indexed node, uint32 step, uint32 sequence);
    event Challenged(
        uint256 indexed run,
        address indexed node,
        bytes32 indexed root,
        uint32 step,
        uint32 sequence,
        address challenger,
        bool hard,
        bytes32 evidence
    );
    event Appealed(uint256 indexed run, address indexed node, bytes32 indexed root, uint32 step, uint32 sequence);
    event Voted(uint256 indexed run, bytes32 indexed work, address indexed validator, bool uphold);
    event Revoked(
        uint256 indexed run,
        address indexed node,
        bytes32 indexed root,
        uint32 step,
        uint32 sequence,
        bool hard,
        uint256 units,
        uint256 slashed
    );
    event Cleared(uint256 indexed run, address indexed node, bytes32 indexed root, uint32 step, uint32 sequence);
    event Claimed(uint256 indexed run, address indexed node, address indexed operator, uint256 units, uint256 amount);

    // ---- state ------------------------------------------------------------------------------------------------------

    bytes32 private constant JOIN =
        keccak256("Join(uint256 run,address operator,address node,bytes32 peer,uint8 hardware,uint256 deadline)");
    bytes32 private constant INVITE = keccak256("Invite(uint256 run,address node,uint256 deadline)");

    IERC20 public immutable token;
    Bonds public immutable bonds;
    uint256 public count;
    mapping(uint256 run => Policy) internal _policies;
    mapping(uint256 run => bytes32) public specDigests;
    mapping(uint256 run => Funds) public funds;
    mapping(uint256 run => bool) public paused;
    mapping(uint256 run => uint32) public published; // number of publications; the head is the one before
    mapping(uint256 run => mapping(uint32 step => Publication)) public publications;
    mapping(uint256 run => mapping(address node => Seat)) public seats;
    mapping(uint256 run => mapping(address => Role)) public validators; // None, approved: Left, enlisted: Active
    mapping(bytes32 work => Work) public works;
    mapping(bytes32 work => Case) public cases;
    mapping(bytes32 work => mapping(address => bool)) public voted;

    modifier onlyOwner(uint256 run) {
        if (msg.sender != _policies[run].owner) revert Denied();
        _;
    }

    constructor(IERC20 token_, uint64 delay, address sink) EIP712("Murmuration", "1") {
        token = token_;
        bonds = new Bonds(token_, delay, sink);
    }

    // ---- runs -------------------------------------------------------------------------------------------------------

    function create(Policy calldata p, bytes32 specDigest) external returns (uint256 run) {
        if (p.owner == address(0) || p.trainer == address(0) || specDigest == 0) revert InvalidPolicy();
        if (p.window < 5 || p.finderBps > 5_000 || p.maxUnits == 0 || p.maxPerStep == 0) revert InvalidPolicy();
        if (uint256(p.window) + p.appeal + p.vote >= bonds.delay()) revert InvalidPolicy(); // stake must outlast verdicts
        if (p.appeal != 0 && p.quorum == 0) revert InvalidPolicy();
        if (uint256(p.penalty) + p.bond > p.nodeStake) revert InvalidPolicy(); // a run takes what a seat locked, no more
        run = ++count;
        _policies[run] = p;
        specDigests[run] = specDigest;
        emit RunCreated(run, p.owner, specDigest, p);
    }

    function policy(uint256 run) external view returns (Policy memory) {
        return _policies[run];
    }

    function fund(uint256 run, uint128 amount) external {
        if (_policies[run].owner == address(0)) revert NoSuchRun();
        funds[run].free += amount;
        emit Funded(run, int256(uint256(amount)));
        token.safeTransferFrom(msg.sender, address(this), amount);
    }

    function defund(uint256 run, uint128 amount) external onlyOwner(run) {
        Funds storage f = funds[run];
        if (f.free < amount) revert Unfunded(f.free, amount);
        f.free -= amount;
        emit Funded(run, -int256(uint256(amount)));
        token.safeTransfer(msg.sender, amount);
    }

    /// @notice Stops new submissions only; verdicts, claims and withdrawals can never be stopped.
    function pause(uint256 run, bool on) external onlyOwner(run) {
        paused[run] = on;
        emit Paused(run, on);
    }

    /// @notice Announces the next version of the weights and draws the beacon that seeds all work on it.
    function publish(uint256 run, uint32 step, bytes32 manifest) external {
        if (msg.sender != _policies[run].trainer) revert Denied();
        if (manifest == 0) revert WrongState();
        if (step != published[run]) revert WrongStep(step, published[run]);
        bytes32 beacon = keccak256(abi.encode(blockhash(block.number - 1), run, step, manifest));
        // block number and time fit 64 bits
        publications[run][step] = Publication(manifest, beacon, uint64(block.number), uint64(block.timestamp));
        published[run] = step + 1;
        emit Published(run, step, manifest, beacon);
    }

    // ---- seats ------------------------------------------------------------------------------------------------------

    /// @notice Seats a node for the calling operator, with the node's signed consent.
    /// @param peer Bytes of the node's libp2p PeerID.
    /// @param gateSig Signature of the run's gate over Invite, where it has one.
    function join(
        uint256 run,
        address node,
        bytes calldata peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata nodeSig,
        bytes calldata gateSig
    ) external {
        Policy storage p = _policies[run];
        Seat storage s = seats[run][node];
        if (p.owner == address(0)) revert NoSuchRun();
        if (s.role == Role.Active || s.role == Role.Banned) revert WrongState();
        if (s.role == Role.Left && s.operator != msg.sender) revert Denied();
        if (block.timestamp > deadline) revert TooLate();
        bytes32 digest =
            _hashTypedDataV4(keccak256(abi.encode(JOIN, run, msg.sender, node, keccak256(peer), hardware, deadline)));
        if (!SignatureChecker.isValidSignatureNow(node, digest, nodeSig)) revert Denied();
        if (p.gate != address(0)) {
            digest = _hashTypedDataV4(keccak256(abi.encode(INVITE, run, node, deadline)));
            if (!SignatureChecker.isValidSignatureNow(p.gate, digest, gateSig)) revert Denied();
        }
        (s.operator, s.role, s.hardware, s.since) = (msg.sender, Role.Active, hardware, uint64(block.number));
        bonds.lock(msg.sender, p.nodeStake);
        emit Joined(run, node, msg.sender, peer, hardware);
    }

    function leave(uint256 run, address node) external {
        Seat storage s = seats[run][node];
        if (s.role != Role.Active) revert WrongState();
        if (msg.sender != s.operator) revert Denied();
        s.role = Role.Left;
        bonds.unlock(s.operator, _policies[run].nodeStake);
        emit Left(run, node, Role.Left);
    }

    /// @notice Bars a node from further work; what it earned is decided by verdicts alone.
    function ban(uint256 run, address node) external onlyOwner(run) {
        _ban(run, node);
    }

    /// @notice Lets `validator` take a seat, or takes approval and seat away.
    function approve(uint256 run, address validator, bool on) external onlyOwner(run) {
        Role role = validators[run][validator];
        if (on && role == Role.None) validators[run][validator] = Role.Left;
        if (!on) {
            if (role == Role.Active) bonds.unlock(validator, _policies[run].validatorStake);
            validators[run][validator] = Role.None;
        }
        emit ValidatorApproved(run, validator, on);
    }

    /// @notice Takes (or gives up) the caller's validator seat.
    function enlist(uint256 run, bool on) external {
        if (validators[run][msg.sender] != (on ? Role.Left : Role.Active)) revert WrongState();
        validators[run][msg.sender] = on ? Role.Active : Role.Left;
        if (on) bonds.lock(msg.sender, _policies[run].validatorStake);
        else bonds.unlock(msg.sender, _policies[run].validatorStake);
        emit ValidatorSeated(run, msg.sender, on);
    }

    // ---- work -------------------------------------------------------------------------------------------------------

    function workId(uint256 run, Ref memory ref) public pure returns (bytes32) {
        return keccak256(abi.encode(run, ref.node, ref.step, ref.sequence, ref.root));
    }

    /// @notice Commits the caller to a rollout file. Reverts unless the beacon is that of a current head and the sequence
    /// is the next one, so a reorg or a lost transaction never turns honest work into a fault.
    function submit(uint256 run, bytes32 root, uint32 step, uint32 sequence, uint32 units, bytes32 beacon) external {
        Policy storage p = _policies[run];
        Seat storage s = _seatFor(run, p, step, beacon);
        _advance(s, p, step, sequence);
        uint256 epoch = _epoch(p);
        s.ring = _record(run, p, Ref(msg.sender, step, sequence, root), units, _rolled(s, epoch), epoch);
    }

    /// @notice Commits several files of one step at once, their sequence numbers counted up from `sequence`.
    function submitMany(uint256 run, uint32 step, uint32 sequence, bytes32 beacon, Item[] calldata items) external {
        Policy storage p = _policies[run];
        Seat storage s = _seatFor(run, p, step, beacon);
        uint256 epoch = _epoch(p);
        uint256 ring = _rolled(s, epoch);
        for (uint32 i; i < items.length; ++i) {
            _advance(s, p, step, sequence + i);
            ring = _record(run, p, Ref(msg.sender, step, sequence + i, items[i].root), items[i].units, ring, epoch);
        }
        s.ring = ring;
    }

    /// @notice Gives up one sequence number in the open.
    function skip(uint256 run, uint32 step, uint32 sequence, bytes32 beacon) external {
        Policy storage p = _policies[run];
        _advance(_seatFor(run, p, step, beacon), p, step, sequence);
        emit Skipped(run, msg.sender, step, sequence);
    }

    /// @dev The caller's seat, if it may work on `step` now.
    function _seatFor(uint256 run, Policy storage p, uint32 step, bytes32 beacon)
        private
        view
        returns (Seat storage s)
    {
        s = seats[run][msg.sender];
        if (s.role != Role.Active) revert Denied();
        if (s.openHard != 0) revert CaseOpen();
        if (paused[run]) revert RunPaused();
        uint32 heads = published[run];
        if (heads == 0 || step + 1 > heads) revert WrongStep(step, heads);
        if (step + 1 < heads && block.timestamp >= publications[run][step + 1].time + p.grace) {
            revert WrongStep(step, heads - 1);
        }
        Publication storage head = publications[run][step];
        if (head.beacon != beacon) revert WrongBeacon();
        if (s.since >= head.blockNumber) revert SeatTooYoung(s.since, head.blockNumber);
    }

    /// @dev Sequence numbers of a step are used once, in order; a step left behind is not returned to.
    function _advance(Seat storage s, Policy storage p, uint32 step, uint32 sequence) private {
        // `next` tells a seat that never worked (0) from one that worked on step 0 (at least 1)
        bool same = s.step == step && s.next != 0;
        if (!same && s.next != 0 && step < s.step) revert WrongStep(step, s.step);
        uint32 expected = same ? s.next : 0;
        if (sequence != expected || sequence >= p.maxPerStep) revert WrongSequence(sequence, expected);
        (s.step, s.next) = (step, sequence + 1);
    }

    function _record(uint256 run, Policy storage p, Ref memory ref, uint32 units, uint256 ring, uint256 epoch)
        private
        returns (uint256)
    {
        if (units == 0 || units > p.maxUnits) revert InvalidUnits(units, p.maxUnits);
        // block time fits 40 bits until the year 36,812
        works[workId(run, ref)] = Work(uint40(block.timestamp), units, State.Submitted);
        Funds storage f = funds[run];
        uint128 owed = units * p.reward;
        if (f.free < owed) revert Unfunded(f.free, owed);
        (f.free, f.reserved) = (f.free - owed, f.reserved + owed);
        emit Submitted(run, ref.node, ref.root, ref.step, ref.sequence, units);
        return ring.add(epoch, units);
    }

    function _epoch(Policy storage p) private view returns (uint256) {
        return _epochAt(p, block.timestamp);
    }

    function _epochAt(Policy storage p, uint256 time) private view returns (uint256) {
        return time / ((uint256(p.window) + 4) / 5);
    }

    function _rolled(Seat storage s, uint256 epoch) private returns (uint256 ring) {
        uint256 matured;
        (ring, matured) = s.ring.roll(epoch);
        if (matured != 0) s.vested += uint96(matured); // at most six buckets of 32 bits
    }

    // ---- verdicts ---------------------------------------------------------------------------------------------------

    /// @notice A seated validator disputes a work: soft, its units earn nothing; hard, the seat is also slashed.
    function challenge(uint256 run, Ref calldata ref, bool hard, bytes32 evidence) external {
        if (validators[run][msg.sender] != Role.Active) revert Denied();
        Policy storage p = _policies[run];
        bytes32 id = workId(run, ref);
        Work storage w = works[id];
        if (w.state != State.Submitted) revert WrongState();
        if (block.timestamp >= uint256(w.time) + p.window) revert TooLate();
        Seat storage s = seats[run][ref.node];
        uint256 ring = _rolled(s, _epoch(p));
        if (!hard && s.swept) revert WrongState(); // a hard verdict has already taken these units
        if (!hard) ring = ring.sub(_epochAt(p, w.time), w.units); // escrowed until settled
        else if (s.openHard++ == 0) s.safe = s.vested; // nothing that matures from here on may be claimed
        s.ring = ring;
        w.state = State.Challenged;
        cases[id] = Case(msg.sender, hard, uint40(block.timestamp + p.appeal), 0, 0, evidence);
        bonds.lock(msg.sender, p.appeal == 0 ? 0 : p.bond);
        emit Challenged(run, ref.node, ref.root, ref.step, ref.sequence, msg.sender, hard, evidence);
        if (p.appeal == 0) _settle(run, ref, id, true, false);
    }

    /// @notice The operator of a challenged work asks the other validators to vote.
    function appeal(uint256 run, Ref calldata ref) external {
        bytes32 id = workId(run, ref);
        Work storage w = works[id];
        Case storage c = cases[id];
        if (w.state != State.Challenged) revert WrongState();
        if (msg.sender != seats[run][ref.node].operator) revert Denied();
        if (block.timestamp >= c.deadline) revert TooLate();
        bonds.lock(msg.sender, _policies[run].bond);
        c.deadline = uint40(block.timestamp + _policies[run].vote);
        w.state = State.Appealed;
        emit Appealed(run, ref.node, ref.root, ref.step, ref.sequence);
    }

    function vote(uint256 run, Ref calldata ref, bool uphold) external {
        bytes32 id = workId(run, ref);
        Case storage c = cases[id];
        if (works[id].state != State.Appealed) revert WrongState();
        if (block.timestamp >= c.deadline) revert TooLate();
        if (validators[run][msg.sender] != Role.Active || msg.sender == c.challenger || voted[id][msg.sender]) {
            revert Denied();
        }
        voted[id][msg.sender] = true;
        uint8 votes = uphold ? ++c.uphold : ++c.reject;
        emit Voted(run, id, msg.sender, uphold);
        if (votes >= _policies[run].quorum) _settle(run, ref, id, uphold, true);
    }

    /// @notice Closes a case whose time is up. Silence of the operator convicts, silence of the jury acquits.
    function settle(uint256 run, Ref calldata ref) external {
        bytes32 id = workId(run, ref);
        State state = works[id].state;
        if (state != State.Challenged && state != State.Appealed) revert WrongState();
        if (block.timestamp < cases[id].deadline) revert TooEarly();
        _settle(run, ref, id, state == State.Challenged, state == State.Appealed);
    }

    function _settle(uint256 run, Ref calldata ref, bytes32 id, bool uphold, bool appealed) private {
        Policy storage p = _policies[run];
        Case storage c = cases[id];
        Seat storage s = seats[run][ref.node];
        works[id].state = uphold ? State.Revoked : State.Cleared;
        if (p.appeal != 0) bonds.unlock(c.challenger, p.bond);
        if (appealed) {
            bonds.unlock(s.operator, p.bond);
            if (uphold) bonds.slash(s.operator, p.bond, c.challenger, p.finderBps);
            else bonds.slash(c.challenger, p.bond, s.operator, 5_000);
        }
        if (!uphold) {
            if (c.hard) --s.openHard;
            else s.vested += works[id].units;
            emit Cleared(run, ref.node, ref.root, ref.step, ref.sequence);
            return;
        }
        (uint256 units, uint256 slashed) = c.hard ? _convict(run, p, s, ref.node, c.challenger) : (works[id].units, 0);
        Funds storage f = funds[run];
        uint128 back = uint128(units * p.reward); // at most what was reserved for these units
        (f.free, f.reserved) = (f.free + back, f.reserved - back);
        emit Revoked(run, ref.node, ref.root, ref.step, ref.sequence, c.hard, units, slashed);
    }

    /// @dev Takes everything of the seat that is not safe, bans it and slashes its operator.
    function _convict(uint256 run, Policy storage p, Seat storage s, address node, address finder)
        private
        returns (uint256 units, uint256 slashed)
    {
        uint256 ring = _rolled(s, _epoch(p));
        --s.openHard;
        units = ring.sum() + (s.vested - s.safe);
        (s.ring, s.vested, s.swept) = (ring.clear(), s.safe, true);
        _ban(run, node);
        slashed = bonds.slash(s.operator, p.penalty, finder, p.finderBps);
    }

    function _ban(uint256 run, address node) private {
        Seat storage s = seats[run][node];
        if (s.role == Role.Banned) return;
        if (s.role == Role.Active) bonds.unlock(s.operator, _policies[run].nodeStake);
        s.role = Role.Banned;
        emit Left(run, node, Role.Banned);
    }

    // ---- rewards ----------------------------------------------------------------------------------------------------

    /// @return ready Units that may be claimed now.
    /// @return pending Units that still wait for their window or for an open hard case.
    function claimable(uint256 run, address node) external view returns (uint256 ready, uint256 pending) {
        Seat storage s = seats[run][node];
        if (_policies[run].window == 0) revert NoSuchRun();
        (uint256 ring, uint256 matured) = s.ring.roll(_epoch(_policies[run]));
        uint256 all = s.vested + matured;
        ready = s.openHard == 0 ? all : s.safe;
        pending = ring.sum() + all - ready;
    }

    /// @notice Pays the operator what has matured. Anyone may call it.
    function claim(uint256 run, address node) external returns (uint256 amount) {
        Policy storage p = _policies[run];
        Seat storage s = seats[run][node];
        if (s.role == Role.None) revert WrongState();
        s.ring = _rolled(s, _epoch(p));
        uint96 units = s.openHard == 0 ? s.vested : s.safe;
        s.vested -= units;
        s.safe = 0;
        amount = units * p.reward;
        funds[run].reserved -= uint128(amount); // never more than was reserved for these units
        emit Claimed(run, node, s.operator, units, amount);
        token.safeTransfer(s.operator, amount);
    }
}
