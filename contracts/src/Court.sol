// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {
    Denied,
    InsufficientStake,
    NoSuchRun,
    TooEarly,
    TooLate,
    WrongAddress,
    WrongState,
    ZeroAmount
} from "./interfaces/Errors.sol";
import {IBonds} from "./interfaces/IBonds.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {ILocations} from "./interfaces/ILocations.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {Locations} from "./Locations.sol";
import {Policies} from "./Policies.sol";
import {Ring} from "./Ring.sol";
import {Typed} from "./Typed.sol";
import {Submissions} from "./Submissions.sol";

/// @title Validators and verdicts
/// @notice See ICourt.
contract Court is ICourt {
    using Ring for uint256;

    /// @dev What a new case starts with.
    struct Opening {
        uint256 earliest;
        uint256 ring;
        uint8 submissions;
        bool hard;
        address coSigner;
        uint256 samples;
    }

    bytes32 private constant VERDICT =
        keccak256("Verdict(uint256 run,bytes32 submission,uint8 outcome,uint256 samples,bytes32 details)");
    uint8 private constant ACCEPT = 1;
    uint8 private constant HARD = 3;
    uint16 private constant WINNER_BPS = 5_000; // of a lost bond, to whoever appealed; were it all, bonds could be traded

    /// @inheritdoc ICourt
    IRuns public immutable runs;
    /// @inheritdoc ICourt
    IBonds public immutable bonds;
    /// @notice Where runs can be reached. Not of ICourt: Runs does without, and has the code it had before there was this.
    ILocations public immutable locations;
    mapping(uint256 run => IRuns.Policy) internal _policies;
    mapping(uint256 run => mapping(address validator => Validator)) internal _validators;
    /// @inheritdoc ICourt
    mapping(uint256 run => uint256) public seated;
    mapping(uint256 run => mapping(address seat => mapping(uint256 number => Case))) internal _cases;
    /// @inheritdoc ICourt
    mapping(uint256 run => mapping(address seat => mapping(uint256 number => mapping(address validator => bool))))
        public voted;
    /// @inheritdoc ICourt
    mapping(bytes32 submission => mapping(address signer => uint256 number)) public charges;
    /// @inheritdoc ICourt
    mapping(bytes32 submission => mapping(address validator => bool)) public impeached;

    constructor(IRuns runs_) {
        if (address(runs_.court()) != address(this)) revert WrongAddress(address(this), address(runs_.court()));
        (runs, bonds) = (runs_, runs_.bonds());
        locations = new Locations(this);
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function policy(uint256 run) external view returns (IRuns.Policy memory) {
        return _policyOf(run);
    }

    /// @inheritdoc ICourt
    function validators(uint256 run, address validator) external view returns (Validator memory) {
        return _validators[run][validator];
    }

    /// @inheritdoc ICourt
    function cases(uint256 run, address seat, uint256 number) external view returns (Case memory) {
        return _cases[run][seat][number];
    }

    /// @inheritdoc ICourt
    function stateOf(uint256 run, IRuns.SubmissionRef calldata ref) external view returns (State) {
        IRuns.Submission memory w = runs.submissions(Submissions.id(run, ref));
        if (w.time == 0) return State.None;
        Stage stage = _cases[run][runs.seatOf(run, ref.node)][w.number].stage;
        if (stage == Stage.None) return State.Submitted;
        if (stage == Stage.Open) return State.Challenged;
        if (stage == Stage.Appealed) return State.Appealed;
        return stage == Stage.Cleared ? State.Cleared : State.Revoked;
    }

    function _policyOf(uint256 run) private view returns (IRuns.Policy storage p) {
        p = _policies[run];
        if (p.window == 0) revert NoSuchRun(run);
    }

    // ---- Runs only --------------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function open(uint256 run, IRuns.Policy calldata p) external {
        if (msg.sender != address(runs)) revert Denied(msg.sender);
        Policies.check(p, bonds.delay());
        _policies[run] = p;
    }

    /// @inheritdoc ICourt
    function requireJury(uint256 run) external view {
        IRuns.Policy storage p = _policies[run];
        uint256 needed = uint256(p.quorum) + 1 + p.coSigners;
        if (p.appeal != 0 && seated[run] < needed) revert TooFewValidators(seated[run], needed);
    }

    // ---- the bench --------------------------------------------------------------------------------------------------

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
            if (_serves(v)) revert WrongState();
            (v.since, v.until) = (_time(block.timestamp), 0);
            ++seated[run];
            emit ValidatorSeated(run, msg.sender, true, 0);
            uint128 stake = _policies[run].validatorStake;
            if (v.locked < stake) _lock(run, v, stake - v.locked);
        } else {
            if (!_permanent(v)) revert WrongState();
            _retire(run, msg.sender, v);
        }
    }

    /// @inheritdoc ICourt
    function reinforce(uint256 run, uint128 amount) external {
        if (amount == 0) revert ZeroAmount();
        Validator storage v = _validators[run][msg.sender];
        if (!_serves(v)) revert WrongState();
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
        (uint256 from, uint128 amount) = (v.until, v.locked);
        if (from == 0 || amount == 0 || v.openCases != 0) revert WrongState();
        from += 2 * _span(run);
        if (block.timestamp < from) revert TooEarly(from);
        v.locked = 0;
        emit ValidatorReleased(run, validator, amount);
        bonds.unlock(validator, amount);
    }

    function _serves(Validator storage v) private view returns (bool) {
        return v.since != 0 && (v.until == 0 || block.timestamp < v.until);
    }

    function _permanent(Validator storage v) private view returns (bool) {
        return v.since != 0 && v.until == 0;
    }

    /// @dev Sets the end of a validator's service: when what was submitted by now can no longer be in a case.
    function _retire(uint256 run, address validator, Validator storage v) private {
        v.until = _time(block.timestamp + _span(run));
        --seated[run];
        emit ValidatorSeated(run, validator, false, v.until);
    }

    function _lock(uint256 run, Validator storage v, uint128 amount) private {
        v.locked += amount;
        emit ValidatorReinforced(run, msg.sender, v.locked);
        bonds.lock(msg.sender, amount);
    }

    /// @dev Seconds from a submission to the last moment at which a case on it can be open, escalation aside.
    function _span(uint256 run) private view returns (uint256) {
        IRuns.Policy storage p = _policies[run];
        return uint256(p.window) + p.appeal + p.vote;
    }

    function _time(uint256 time) private pure returns (uint40) {
        return uint40(time); // block time plus a policy's 32-bit spans fits 40 bits until the year 36,000
    }

    // ---- cases ------------------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function challenge(uint256 run, IRuns.SubmissionRef[] calldata list, bytes32 evidence)
        external
        returns (uint256 number)
    {
        if (list.length == 0) revert ZeroAmount();
        if (list.length > type(uint8).max) revert TooManySubmissions(list.length, type(uint8).max);
        IRuns.Withheld memory x = runs.withhold(run, list);
        uint8 submissions;
        for (uint256 i; i < list.length; ++i) {
            if ((x.taken >> i) & 1 == 0) continue;
            ++submissions;
            _announce(run, list[i], false, evidence, x.seat, x.number);
        }
        _open(run, x.seat, x.number, Opening(x.earliest, x.ring, submissions, false, address(0), 0));
        return x.number;
    }

    /// @inheritdoc ICourt
    function accuse(
        uint256 run,
        IRuns.SubmissionRef calldata ref,
        uint256 samples,
        bytes32 evidence,
        Receipt calldata second
    ) external returns (uint256 number) {
        bytes32 submission = Submissions.id(run, ref);
        address seat = runs.seatOf(run, ref.node);
        Opening memory o;
        (number, o.ring, o.earliest) = _accuse(run, submission, seat);
        (o.submissions, o.hard) = (1, true);
        _announce(run, ref, true, evidence, seat, number);
        if (_policies[run].coSigners != 0) {
            if (second.validator == msg.sender) revert Denied(msg.sender);
            _requireVerdict(run, submission, HARD, second);
            _sit(run, second.validator, o.earliest);
            if (samples & second.samples == 0 && samples | second.samples != 0) revert NoCommonSample();
            samples &= second.samples;
            o.coSigner = second.validator;
            emit CoSigned(run, seat, number, second.validator, second.details);
        }
        o.samples = samples;
        address signer = o.coSigner == address(0) ? msg.sender : o.coSigner;
        if (charges[submission][signer] != 0) revert Denied(signer); // a signature serves once
        charges[submission][signer] = number;
        _open(run, seat, number, o);
    }

    /// @inheritdoc ICourt
    function appeal(uint256 run, address seat, uint256 number) external {
        Case storage c = _cases[run][seat][number];
        if (c.stage != Stage.Open) revert WrongState();
        if (block.timestamp >= c.deadline) revert TooLate(c.deadline);
        if (!_speaksFor(run, seat, msg.sender)) {
            if (msg.sender == c.challenger || msg.sender == c.coSigner) revert Denied(msg.sender);
            _sit(run, msg.sender, c.earliest);
            c.appellant = msg.sender;
        }
        (c.stage, c.deadline) = (Stage.Appealed, _time(block.timestamp + _policies[run].vote));
        emit Appealed(run, seat, number, msg.sender);
    }

    /// @inheritdoc ICourt
    function vote(uint256 run, address seat, uint256 number, bool uphold) external {
        Case storage c = _cases[run][seat][number];
        if (c.stage != Stage.Appealed) revert WrongState();
        if (block.timestamp >= c.deadline) revert TooLate(c.deadline);
        _requireBench(run, msg.sender, c.earliest);
        if (
            msg.sender == c.challenger || msg.sender == c.coSigner || msg.sender == c.appellant
                || voted[run][seat][number][msg.sender]
        ) revert Denied(msg.sender);
        voted[run][seat][number][msg.sender] = true;
        uint8 votes = uphold ? ++c.uphold : ++c.reject;
        emit Voted(run, seat, number, msg.sender, uphold);
        if (votes >= _policies[run].quorum) _close(run, seat, number, uphold ? Stage.Upheld : Stage.Cleared);
    }

    /// @inheritdoc ICourt
    function settle(uint256 run, address seat, uint256 number) external {
        Case storage c = _cases[run][seat][number];
        (Stage stage, uint256 deadline) = (c.stage, c.deadline);
        if (stage != Stage.Open && stage != Stage.Appealed) revert WrongState();
        if (block.timestamp < deadline) revert TooEarly(deadline);
        _close(run, seat, number, stage == Stage.Open ? Stage.Upheld : Stage.Undecided);
    }

    /// @inheritdoc ICourt
    function impeach(uint256 run, IRuns.SubmissionRef calldata ref, uint256 number, Receipt calldata accepted)
        external
        returns (uint256 slashed)
    {
        bytes32 submission = Submissions.id(run, ref);
        address validator = accepted.validator;
        Case storage c = _cases[run][runs.seatOf(run, ref.node)][number];
        if (c.stage != Stage.Upheld || impeached[submission][validator]) revert WrongState();
        address signer = c.coSigner == address(0) ? c.challenger : c.coSigner;
        if (charges[submission][signer] != number) revert WrongState(); // that case is about another submission
        if (c.samples & accepted.samples == 0) revert NoCommonSample();
        _requireVerdict(run, submission, ACCEPT, accepted);
        impeached[submission][validator] = true;
        slashed = _slash(run, validator, msg.sender, _policies[run].finderBps);
        emit Impeached(run, validator, submission, msg.sender, slashed);
    }

    /// @dev Opens a case of the caller's, with its bond at risk; or decides it, where verdicts are instant.
    function _open(uint256 run, address seat, uint256 number, Opening memory o) private {
        IRuns.Policy storage p = _policies[run];
        _sit(run, msg.sender, o.earliest);
        Case storage c = _cases[run][seat][number];
        bool instant = p.appeal == 0;
        uint40 deadline = _time(block.timestamp + p.appeal);
        (c.challenger, c.earliest, c.deadline, c.stage, c.submissions) =
        (msg.sender, _time(o.earliest), deadline, instant ? Stage.Upheld : Stage.Open, o.submissions);
        if (o.hard) (c.hard, c.coSigner, c.samples) = (true, o.coSigner, o.samples);
        if (instant) {
            _carryOut(run, seat, number, _ruling(p, Stage.Upheld, o.hard, msg.sender, o.submissions, o.ring));
        } else {
            c.ring = o.ring;
        }
    }

    /// @dev Finds out whether and how a submission can be accused, and has Runs open the case.
    function _accuse(uint256 run, bytes32 submission, address seat)
        private
        returns (uint256 number, uint256 ring, uint256 time)
    {
        IRuns.Submission memory w = runs.submissions(submission);
        Case storage c = _cases[run][seat][w.number];
        Stage stage = c.stage;
        uint256 window = _policies[run].window;
        time = w.time;
        bool hard = c.hard;
        bool open_ = stage == Stage.Open || stage == Stage.Appealed;
        if (time == 0) revert WrongState();
        if (block.timestamp >= time + window && (!open_ || hard || block.timestamp >= c.deadline)) {
            revert TooLate(time + window);
        }
        IRuns.Whereabouts units = IRuns.Whereabouts.Seat;
        if (open_) units = IRuns.Whereabouts.Case;
        else if (stage == Stage.Upheld || stage == Stage.Undecided) units = IRuns.Whereabouts.Revoked;
        (number, ring) = runs.accuse(run, seat, submission, units);
        if (!open_) return (number, ring, time);
        // the units move over from the open case
        if (hard) {
            (ring, c.ring) = (c.ring, c.ring.clear()); // it has no others
        } else {
            uint256 epoch = Ring.epochAt(time, window);
            (ring, c.ring) = (c.ring.clear().add(epoch, w.units), c.ring.sub(epoch, w.units));
            if (--c.submissions == 0) _close(run, seat, w.number, Stage.Undecided); // nothing is left to dispute
        }
    }

    function _announce(
        uint256 run,
        IRuns.SubmissionRef calldata ref,
        bool hard,
        bytes32 evidence,
        address seat,
        uint256 number
    ) private {
        emit Challenged(run, ref.node, ref.root, ref.step, ref.sequence, msg.sender, hard, evidence, seat, number);
    }

    /// @dev Only those judge a submission who were seated before it was submitted.
    function _requireBench(uint256 run, address validator, uint256 earliest)
        private
        view
        returns (Validator storage v)
    {
        v = _validators[run][validator];
        if (!_serves(v) || v.since >= earliest) revert NotOnBench(validator);
    }

    /// @dev Makes a validator of the bench a party to a case. Its bond is at risk unless verdicts are instant.
    function _sit(uint256 run, address validator, uint256 earliest) private {
        IRuns.Policy storage p = _policies[run];
        Validator storage v = _requireBench(run, validator, earliest);
        if (p.appeal == 0) return;
        uint256 needed = ++v.openCases * uint256(p.bond);
        if (needed > v.locked) revert InsufficientStake(v.locked, needed);
    }

    /// @dev Whether `who` operates the seat or is its present key.
    function _speaksFor(uint256 run, address seat, address who) private view returns (bool) {
        IRuns.Seat memory s = runs.seats(run, seat);
        return who == s.operator || who == (s.rotated ? s.key : seat);
    }

    function _requireVerdict(uint256 run, bytes32 submission, uint8 outcome, Receipt calldata r) private view {
        bytes32 content = keccak256(abi.encode(VERDICT, run, submission, outcome, r.samples, r.details));
        // by a plain key: what a contract has signed it can unsign, and so escape impeachment
        if (!Typed.signedByKey(address(runs), content, r.validator, r.signature)) revert Denied(r.validator);
    }

    /// @dev Ends an open case: bonds are free or lost, and Runs does the rest.
    function _close(uint256 run, address seat, uint256 number, Stage verdict) private {
        IRuns.Policy storage p = _policies[run];
        Case storage c = _cases[run][seat][number];
        bool hard = c.hard;
        bool appealed = c.stage == Stage.Appealed;
        (address challenger, address coSigner, address appellant) =
            (c.challenger, hard ? c.coSigner : address(0), appealed ? c.appellant : address(0));
        IRuns.Ruling memory r = _ruling(p, verdict, hard, challenger, c.submissions, c.ring);
        (c.stage, c.ring) = (verdict, 0);
        --_validators[run][challenger].openCases;
        if (coSigner != address(0)) --_validators[run][coSigner].openCases;
        if (appellant != address(0)) --_validators[run][appellant].openCases;
        if (verdict == Stage.Cleared) {
            address winner = appellant == address(0) ? runs.seats(run, seat).operator : appellant;
            _slash(run, challenger, winner, WINNER_BPS);
            if (coSigner != address(0)) _slash(run, coSigner, winner, WINNER_BPS);
        } else if (verdict == Stage.Upheld && appealed) {
            if (appellant == address(0)) r.bond = p.bond;
            else _slash(run, appellant, challenger, p.finderBps);
        }
        _carryOut(run, seat, number, r);
    }

    function _ruling(
        IRuns.Policy storage p,
        Stage verdict,
        bool hard,
        address challenger,
        uint8 submissions,
        uint256 ring
    ) private view returns (IRuns.Ruling memory) {
        return IRuns.Ruling(verdict, hard, challenger, ring, submissions, p.fee, 0, p.penalty, p.finderBps);
    }

    function _carryOut(uint256 run, address seat, uint256 number, IRuns.Ruling memory r) private {
        (uint256 units, uint256 slashed) = runs.settle(run, seat, r);
        emit Settled(run, seat, number, r.verdict, r.hard, units, slashed);
    }

    /// @dev Takes one bond of a validator's lock, or what is left of it.
    function _slash(uint256 run, address validator, address finder, uint16 finderBps) private returns (uint128 taken) {
        Validator storage v = _validators[run][validator];
        (uint128 bond, uint128 locked) = (_policies[run].bond, v.locked);
        taken = bonds.slash(validator, bond < locked ? bond : locked, finder, finderBps);
        v.locked = locked - taken;
    }
}
