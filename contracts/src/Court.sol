// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {
    Denied,
    InsufficientStake,
    TooEarly,
    TooLate,
    TooLong,
    WrongAddress,
    WrongState,
    ZeroAmount
} from "./interfaces/Errors.sol";
import {IBench} from "./interfaces/IBench.sol";
import {IBonds} from "./interfaces/IBonds.sol";
import {ISignatures} from "./interfaces/ISignatures.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {ILocations} from "./interfaces/ILocations.sol";
import {IPolicies} from "./interfaces/IPolicies.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {Bonding} from "./Bonding.sol";
import {Locations} from "./Locations.sol";
import {Policies} from "./Policies.sol";
import {Ring} from "./Ring.sol";
import {Signatures} from "./Signatures.sol";
import {Submissions} from "./Submissions.sol";
import {Tally} from "./Tally.sol";

/// @title Cases and verdicts
/// @notice See ICourt.
contract Court is ICourt {
    using Ring for uint256;
    using Tally for uint256;

    /// @dev What a new case starts with.
    struct Opening {
        uint256 earliest;
        uint256 ring;
        uint256 units;
        uint8 submissions;
        bool hard;
        address coSigner;
        uint256 samples;
    }

    /// @dev Names a case.
    struct CaseId {
        uint256 run;
        address seat;
        uint256 number;
    }

    /// @dev What is said of the submissions of a case, and what that costs whom.
    struct Verdict {
        uint256 members; // that it is about
        uint256 upheld;
        uint256 cleared;
        bool convicts;
        bool voted; // by a jury: then somebody pays it
        bool late; // the vote is over; then, whether some were not decided by then
        Ballot[] ballots;
        uint256 foundHard;
    }

    bytes32 private constant VERDICT =
        keccak256("Verdict(uint256 run,bytes32 submission,uint8 outcome,uint256 samples,bytes32 details)");
    uint8 private constant ACCEPT = 1;
    uint8 private constant HARD = 3;
    uint256 private constant LONGEST = 128; // bytes of a reason
    uint256 private constant MORE = 1 << 255; // among stored jurors: another ballot follows; a bench has no place 255

    /// @inheritdoc ICourt
    IRuns public immutable runs;
    /// @inheritdoc ICourt
    IBonds public immutable bonds;
    /// @inheritdoc ICourt
    IBench public immutable bench;
    /// @inheritdoc ICourt
    IPolicies public immutable policies;
    /// @inheritdoc ICourt
    ISignatures public immutable signatures;
    /// @notice Where runs can be reached. Not of ICourt: Runs does without, and has the code it had before there was this.
    ILocations public immutable locations;
    mapping(uint256 run => Terms) internal _terms;
    mapping(uint256 run => mapping(address seat => mapping(uint256 number => Case))) internal _cases;
    /// @dev Of the first vote and of the second; one without MORE ends the list.
    mapping(
        uint256 run
            => mapping(address seat => mapping(uint256 number => mapping(bool again => mapping(uint256 => Ballot))))
    ) internal _ballots;
    /// @dev Sizes of the submissions in a case of several: see IRuns.Withheld.
    mapping(uint256 run => mapping(address seat => mapping(uint256 number => mapping(uint256 word => uint256))))
        internal _parcels;
    /// @inheritdoc ICourt
    mapping(bytes32 submission => mapping(address signer => uint256 number)) public charges;
    /// @inheritdoc ICourt
    mapping(bytes32 submission => mapping(address validator => bool)) public impeached;

    constructor(IRuns runs_) {
        if (address(runs_.court()) != address(this)) revert WrongAddress(address(this), address(runs_.court()));
        (runs, bonds, bench) = (runs_, runs_.bonds(), runs_.bench());
        signatures = new Signatures(address(runs_));
        policies = new Policies(runs_, this);
        locations = new Locations(policies);
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function cases(uint256 run, address seat, uint256 number) external view returns (Case memory) {
        return _cases[run][seat][number];
    }

    /// @inheritdoc ICourt
    function ballots(uint256 run, address seat, uint256 number) external view returns (Ballot[] memory) {
        return _read(_ballots[run][seat][number][_cases[run][seat][number].again], 0);
    }

    /// @inheritdoc ICourt
    function voted(uint256 run, address seat, uint256 number, address validator) public view returns (bool) {
        Case storage c = _cases[run][seat][number];
        uint256 bit = bench.bitOf(run, validator, c.earliest);
        if (c.excused & bit != 0) return true;
        Ballot[] memory all = _read(_ballots[run][seat][number][c.again], 0);
        for (uint256 i; i < all.length; ++i) {
            if (all[i].jurors & bit != 0) return true;
        }
        return false;
    }

    /// @inheritdoc ICourt
    function isJuror(uint256 run, address seat, uint256 number, address validator) external view returns (bool) {
        Case storage c = _cases[run][seat][number];
        return c.stage == Stage.Appealed && block.timestamp < c.deadline && bench.bitOf(run, validator, c.earliest) != 0
            && !voted(run, seat, number, validator);
    }

    /// @inheritdoc ICourt
    function bondFor(uint256 run, uint256 units) public view returns (uint256) {
        Terms storage p = _terms[run];
        return Bonding.bond(p.bond, p.bondBps, p.reward, units);
    }

    /// @inheritdoc ICourt
    function submissionId(uint256 run, IRuns.SubmissionRef calldata ref) external pure returns (bytes32) {
        return Submissions.id(run, ref);
    }

    /// @inheritdoc ICourt
    function stateOf(uint256 run, IRuns.SubmissionRef calldata ref) external view returns (State) {
        IRuns.Submission memory w = runs.submissions(Submissions.id(run, ref));
        if (w.time == 0) return State.None;
        return _stateOf(_cases[run][runs.seatOf(run, ref.node)][w.number], w.index);
    }

    function _stateOf(Case storage c, uint256 index) private view returns (State) {
        Stage stage = c.stage;
        if (stage == Stage.None) return State.Submitted;
        if (stage == Stage.Upheld) return State.Revoked;
        if (stage == Stage.Cleared || stage == Stage.Returned) return State.Cleared;
        if (c.upheld >> index & 1 != 0) return State.Revoked;
        if (stage == Stage.Split || c.cleared >> index & 1 != 0) return State.Cleared;
        if (stage == Stage.Undecided) return State.Undecided;
        return stage == Stage.Open ? State.Challenged : State.Appealed;
    }

    // ---- Policies only ----------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function open(uint256 run, Terms calldata terms) external {
        if (msg.sender != address(policies)) revert Denied(msg.sender);
        _terms[run] = terms;
    }

    // ---- bringing cases ---------------------------------------------------------------------------------------------

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
        if (submissions > 1 && _terms[run].appeal != 0) {
            for (uint256 i; i * 8 < submissions; ++i) {
                _parcels[run][x.seat][x.number][i] = x.parcels[i];
            }
        }
        _open(
            CaseId(run, x.seat, x.number), Opening(x.earliest, x.ring, x.ring.sum(), submissions, false, address(0), 0)
        );
        return x.number;
    }

    /// @inheritdoc ICourt
    function challengeAgain(uint256 run, address seat, uint256 number, bytes32 evidence) external {
        Case storage c = _cases[run][seat][number];
        if (c.stage != Stage.Undecided) revert WrongState();
        if (block.timestamp >= c.deadline) revert TooLate(c.deadline);
        if (msg.sender == c.challenger || msg.sender == c.coSigner) revert Denied(msg.sender);
        uint256 earliest = c.earliest;
        address[5] memory before = [c.challenger, c.coSigner, c.appellant, address(0), address(0)];
        (c.excused,) = bench.empanel(run, earliest, 0, before);
        uint256 bond = bondFor(run, c.ring.sum());
        (c.challenger, c.stage) = (msg.sender, Stage.Open);
        c.deadline = _time(block.timestamp + _terms[run].appeal);
        (c.coSigner, c.bond) = (address(0), uint88(bond)); // at most a validator's lock, or `sit` reverts; see IPolicies
        (c.appellant, c.keyed, c.again) = (address(0), false, true);
        emit ChallengedAgain(run, seat, number, msg.sender, evidence);
        bench.sit(run, msg.sender, address(0), earliest, bond);
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
        (number, o.ring, o.earliest, o.units) = _accuse(run, submission, seat);
        (o.submissions, o.hard) = (1, true);
        _announce(run, ref, true, evidence, seat, number);
        if (_terms[run].coSigners != 0) {
            if (second.validator == msg.sender) revert Denied(msg.sender);
            _requireVerdict(run, submission, HARD, second);
            if (samples & second.samples == 0 && samples | second.samples != 0) revert NoCommonSample();
            samples &= second.samples;
            o.coSigner = second.validator;
            emit CoSigned(run, seat, number, second.validator, second.details);
        }
        o.samples = samples;
        address signer = o.coSigner == address(0) ? msg.sender : o.coSigner;
        if (charges[submission][signer] != 0) revert Denied(signer); // a signature serves once
        charges[submission][signer] = number;
        _open(CaseId(run, seat, number), o);
    }

    /// @dev Opens a case of the caller's, with its bond at risk; or decides it, where verdicts are instant.
    function _open(CaseId memory id, Opening memory o) private {
        Terms storage p = _terms[id.run];
        uint256 bond = bondFor(id.run, o.units);
        bench.sit(id.run, msg.sender, o.coSigner, o.earliest, bond);
        Case storage c = _cases[id.run][id.seat][id.number];
        (c.challenger, c.earliest, c.deadline, c.stage, c.submissions) =
        (msg.sender, _time(o.earliest), _time(block.timestamp + p.appeal), Stage.Open, o.submissions);
        if (o.hard) (c.coSigner, c.hard, c.samples) = (o.coSigner, true, o.samples);
        c.ring = o.ring;
        if (p.appeal == 0) {
            Verdict memory v;
            (v.members, v.convicts) = (_members(c), o.hard);
            v.upheld = v.members;
            _close(id, c, v);
        } else {
            c.bond = uint88(bond); // at most the lock of the challenger, a uint88
        }
    }

    /// @dev Finds out whether and how a submission can be accused, and has Runs open the case.
    function _accuse(uint256 run, bytes32 submission, address seat)
        private
        returns (uint256 number, uint256 ring, uint256 time, uint256 size)
    {
        IRuns.Submission memory w = runs.submissions(submission);
        Case storage c = _cases[run][seat][w.number];
        uint256 window = _terms[run].window;
        (time, size) = (w.time, w.units);
        if (time == 0) revert WrongState();
        if (block.timestamp >= time + window) revert TooLate(time + window);
        State state = _stateOf(c, w.index);
        IRuns.Whereabouts units = IRuns.Whereabouts.Case;
        if (state == State.Submitted || state == State.Cleared) units = IRuns.Whereabouts.Seat;
        if (state == State.Revoked) units = IRuns.Whereabouts.Revoked;
        bool moved;
        (number, ring, moved) = runs.accuse(run, seat, submission, units);
        if (!moved || units == IRuns.Whereabouts.Seat) return (number, ring, time, size);
        ring = _leave(CaseId(run, seat, w.number), c, w, Ring.epochAt(time, window));
    }

    /// @dev The units of a submission move over from an open case to a new one.
    function _leave(CaseId memory id, Case storage c, IRuns.Submission memory w, uint256 epoch)
        private
        returns (uint256 ring)
    {
        if (c.hard) {
            (ring, c.ring) = (c.ring, c.ring.clear()); // it has no others, and stands without
            return ring;
        }
        (ring, c.ring) = (c.ring.clear().add(epoch, w.units), c.ring.sub(epoch, w.units));
        (c.gone, c.parted) = (c.gone | 1 << w.index, true);
        Verdict memory v;
        if (_members(c) == 0) _close(id, c, v); // nothing is left to dispute
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

    // ---- appeal and vote --------------------------------------------------------------------------------------------

    /// @inheritdoc ICourt
    function appeal(uint256 run, address seat, uint256 number) external {
        Case storage c = _cases[run][seat][number];
        if (c.stage != Stage.Open) revert WrongState();
        if (block.timestamp >= c.deadline) revert TooLate(c.deadline);
        Terms storage p = _terms[run];
        uint256 earliest = c.earliest;
        (address operator, address key, uint256 locked, uint256 spent) = runs.parties(run, seat);
        address appellant;
        if (msg.sender != operator && msg.sender != key) {
            if (msg.sender == c.challenger || msg.sender == c.coSigner) revert Denied(msg.sender);
            bench.sit(run, msg.sender, address(0), earliest, p.bond);
            c.appellant = appellant = msg.sender;
        } else {
            bool keyed = msg.sender != operator;
            if (locked == 0 || (keyed && spent >= p.penalty)) revert InsufficientStake(0, p.bond);
            if (keyed) c.keyed = true;
        }
        address[5] memory parties = [c.challenger, c.coSigner, appellant, operator, key];
        (uint256 excused, uint256 jurors) = bench.empanel(run, earliest, c.excused, parties);
        if (appellant != address(0) && jurors == 0) revert IBench.TooFewValidators(0, 1);
        (c.stage, c.deadline) = (Stage.Appealed, _time(block.timestamp + p.vote));
        (c.jurors, c.excused) = (uint8(jurors), excused); // a bench has at most 255
        emit Appealed(run, seat, number, msg.sender);
    }

    /// @inheritdoc ICourt
    function vote(uint256 run, address seat, uint256 number, uint256 foundFalse, uint256 foundHard, bytes32 receipts)
        external
    {
        Case storage c = _cases[run][seat][number];
        uint256 bit = _juror(run, c);
        if (foundFalse >> c.submissions != 0 || foundHard & ~foundFalse != 0) revert InvalidBallot();
        Verdict memory v;
        v.ballots = _cast(_ballots[run][seat][number][c.again], bit, foundFalse, foundHard);
        emit Voted(run, seat, number, msg.sender, foundFalse, foundHard, receipts);
        _conclude(CaseId(run, seat, number), c, v);
    }

    /// @inheritdoc ICourt
    function abstain(uint256 run, address seat, uint256 number, string calldata reason) external {
        Case storage c = _cases[run][seat][number];
        uint256 bit = _juror(run, c);
        if (bytes(reason).length > LONGEST) revert TooLong(bytes(reason).length, LONGEST);
        if (voted(run, seat, number, msg.sender)) revert Denied(msg.sender);
        c.excused |= bit;
        emit Abstained(run, seat, number, msg.sender, reason);
    }

    /// @inheritdoc ICourt
    function settle(uint256 run, address seat, uint256 number) external {
        Case storage c = _cases[run][seat][number];
        (Stage stage, uint256 deadline) = (c.stage, c.deadline);
        if (stage != Stage.Open && stage != Stage.Appealed && stage != Stage.Undecided) revert WrongState();
        if (block.timestamp < deadline) revert TooEarly(deadline);
        Verdict memory v;
        v.late = true;
        if (stage == Stage.Appealed) {
            v.ballots = _read(_ballots[run][seat][number][c.again], 0);
            return _conclude(CaseId(run, seat, number), c, v);
        }
        v.members = _members(c);
        if (stage == Stage.Open) (v.upheld, v.convicts) = (v.members, c.hard);
        _close(CaseId(run, seat, number), c, v);
    }

    /// @inheritdoc ICourt
    function impeach(uint256 run, IRuns.SubmissionRef calldata ref, uint256 number, Receipt calldata accepted)
        external
        returns (uint256 slashed)
    {
        bytes32 submission = Submissions.id(run, ref);
        address validator = accepted.validator;
        Case storage c = _cases[run][runs.seatOf(run, ref.node)][number];
        if (c.stage != Stage.Upheld || !c.hard || impeached[submission][validator]) revert WrongState();
        address signer = c.coSigner == address(0) ? c.challenger : c.coSigner;
        if (charges[submission][signer] != number) revert WrongState(); // that case is about another submission
        if (c.samples & accepted.samples == 0) revert NoCommonSample();
        _requireVerdict(run, submission, ACCEPT, accepted);
        impeached[submission][validator] = true;
        slashed = bench.impeach(run, validator, msg.sender);
        emit Impeached(run, validator, submission, msg.sender, slashed);
    }

    /// @dev The caller's bit, if it may vote on this case; that it did not yet is for others to check.
    function _juror(uint256 run, Case storage c) private view returns (uint256 bit) {
        if (c.stage != Stage.Appealed) revert WrongState();
        if (block.timestamp >= c.deadline) revert TooLate(c.deadline);
        bit = bench.bitOf(run, msg.sender, c.earliest);
        if (bit == 0) revert IBench.NotOnBench(msg.sender);
        if (c.excused & bit != 0) revert Denied(msg.sender);
    }

    /// @dev Adds a vote to those that are alike.
    function _cast(mapping(uint256 => Ballot) storage stored, uint256 bit, uint256 foundFalse, uint256 foundHard)
        private
        returns (Ballot[] memory all)
    {
        all = _read(stored, 1);
        uint256 many = all.length - 1;
        uint256 at = many;
        for (uint256 i; i < many; ++i) {
            if (all[i].jurors & bit != 0) revert Denied(msg.sender);
            if (all[i].foundFalse == foundFalse && all[i].foundHard == foundHard) at = i;
        }
        all[at].jurors |= bit;
        if (at < many) {
            stored[at].jurors |= bit;
            assembly ("memory-safe") {
                mstore(all, many)
            }
            return all;
        }
        (all[at].foundFalse, all[at].foundHard) = (foundFalse, foundHard);
        if (many != 0) stored[many - 1].jurors |= MORE;
        stored[at].jurors = bit;
        if (foundFalse != 0) stored[at].foundFalse = foundFalse;
        if (foundHard != 0) stored[at].foundHard = foundHard;
    }

    /// @return all What was voted so far, and room for `room` more.
    function _read(mapping(uint256 => Ballot) storage stored, uint256 room) private view returns (Ballot[] memory all) {
        uint256 many = stored[0].jurors == 0 ? 0 : 1;
        while (many != 0 && stored[many - 1].jurors & MORE != 0) ++many;
        all = new Ballot[](many + room);
        for (uint256 i; i < many; ++i) {
            (Ballot storage from, Ballot memory to) = (stored[i], all[i]);
            (to.foundFalse, to.foundHard, to.jurors) = (from.foundFalse, from.foundHard, from.jurors & ~MORE);
        }
    }

    /// @dev Closes an appealed case if all is decided, or its time is up.
    function _conclude(CaseId memory id, Case storage c, Verdict memory v) private {
        Tally.Count memory t = Tally.count(v.ballots, c.jurors);
        v.members = _members(c);
        uint256 rest = v.members & ~t.decided;
        if (!v.late && rest != 0) return;
        v.late = rest != 0;
        (v.upheld, v.cleared, v.foundHard) = (t.foundFalse & v.members, t.cleared & v.members, t.foundHard & v.members);
        (v.convicts, v.voted) = (v.foundHard != 0, true);
        _close(id, c, v);
    }

    // ---- carrying out -----------------------------------------------------------------------------------------------

    /// @dev Ends a stage of a case. What is neither upheld nor cleared went to a vote in vain, or to another case: it waits for
    /// another challenger, if it may have one, or goes back.
    function _close(CaseId memory id, Case storage c, Verdict memory v) private {
        Terms storage p = _terms[id.run];
        IRuns.Ruling memory r;
        uint256 rest = v.members & ~(v.upheld | v.cleared);
        uint256 again = uint256(c.deadline) + p.appeal;
        r.over = !v.voted || rest == 0 || v.convicts || c.again || block.timestamp >= again;
        r.unshut = c.hard; // which ends with the first vote
        (r.convicts, r.keyed, r.challenger) = (v.convicts, c.keyed, c.challenger);
        // who charges hard what is not wins nothing, nor has an appeal of that been lost
        bool charged = r.unshut && !v.convicts;
        if (!charged) r.finderBps = p.finderBps;
        (r.penalty, r.fee) = (p.penalty, p.fee);
        r.back = _part(id, c, v.members, v.cleared | (r.over ? rest : 0));
        r.revoked = _part(id, c, v.members, v.upheld).sum();
        if (r.revoked != 0) r.strikes = v.upheld.ones(); // else another case has revoked it, or will
        uint256 lost; // for each of those who brought it
        if (v.cleared != 0 && !v.convicts) lost = bondFor(id.run, _part(id, c, v.members, v.cleared).sum());
        else if (v.voted && v.upheld != 0 && c.appellant == address(0) && !charged) r.cost = p.bond;
        c.ring = r.over ? 0 : _part(id, c, v.members, rest);
        IRuns.Outcome memory o = runs.settle(id.run, id.seat, r);
        if (c.bond != 0 && c.stage != Stage.Undecided) _pay(id, c, v, lost, o);
        _enter(c, v, rest, r.over ? 0 : again);
        emit Settled(id.run, id.seat, id.number, c.stage, v.upheld, v.cleared, v.convicts, o.units, o.slashed);
    }

    /// @dev Writes down what has become of a case.
    function _enter(Case storage c, Verdict memory v, uint256 rest, uint256 again) private {
        uint256 upheld = v.upheld;
        uint256 cleared = v.cleared;
        if (c.again || c.stage == Stage.Undecided) (upheld, cleared) = (upheld | c.upheld, cleared | c.cleared);
        Stage stage = Stage.Split;
        if (again != 0) (stage, c.deadline) = (Stage.Undecided, _time(again));
        else if (upheld == 0) stage = cleared == 0 ? Stage.Returned : Stage.Cleared;
        else if (cleared | rest == 0) stage = Stage.Upheld;
        if (stage == Stage.Split || stage == Stage.Undecided) {
            if (upheld != 0) c.upheld = upheld;
            if (cleared != 0) c.cleared = cleared;
        }
        if (again != 0 && v.upheld | v.cleared != 0) (c.gone, c.parted) = (c.gone | v.upheld | v.cleared, true);
        if (c.hard != v.convicts && stage != Stage.Cleared && stage != Stage.Returned) c.hard = v.convicts;
        c.stage = stage;
    }

    /// @dev Ends what the parties of a case risk; after a vote the bench takes and pays what follows from it.
    /// @param lost By challenger and co-signer each.
    function _pay(CaseId memory id, Case storage c, Verdict memory v, uint256 lost, IRuns.Outcome memory o) private {
        IBench.Payout memory x;
        (x.challenger, x.appellant, x.bond) = (c.challenger, c.appellant, c.bond);
        if (c.hard) x.coSigner = c.coSigner;
        if (!v.voted) return bench.rise(id.run, x.challenger, x.coSigner, x.appellant, x.bond);
        (x.earliest, x.jurors, x.excused, x.late, x.ballots) = (c.earliest, c.jurors, c.excused, v.late, v.ballots);
        (x.lost, x.paid, x.operator) = (lost < x.bond ? lost : x.bond, o.paid, o.operator);
        (x.members, x.upheld, x.foundHard, x.cleared) = (v.members, v.upheld, v.foundHard, v.cleared);
        x.overcharged = v.upheld != 0 && c.hard && !v.convicts;
        bench.payOut(id.run, id.seat, id.number, x);
    }

    /// @dev The submissions a case is about now.
    function _members(Case storage c) private view returns (uint256) {
        uint256 all = (1 << c.submissions) - 1;
        return c.parted ? all & ~c.gone : all;
    }

    /// @dev The units of some submissions of a case, by epoch.
    function _part(CaseId memory id, Case storage c, uint256 members, uint256 part)
        private
        view
        returns (uint256 ring)
    {
        ring = c.ring;
        if (part == members) return ring;
        ring = ring.clear();
        uint256 word;
        for (uint256 i; part >> i != 0; ++i) {
            if (i % 8 == 0) word = _parcels[id.run][id.seat][id.number][i / 8];
            if ((part >> i) & 1 == 0) continue;
            uint256 parcel = uint32(word >> (32 * (i % 8))); // truncation takes one of eight
            ring = ring.add(parcel >> 29, parcel & ((1 << 29) - 1));
        }
    }

    function _time(uint256 time) private pure returns (uint40) {
        return uint40(time); // block time plus a policy's 32-bit spans fits 40 bits until the year 36,000
    }

    function _requireVerdict(uint256 run, bytes32 submission, uint8 outcome, Receipt calldata r) private view {
        bytes32 content = keccak256(abi.encode(VERDICT, run, submission, outcome, r.samples, r.details));
        // by a plain key: what a contract has signed it can unsign, and so escape impeachment
        if (!signatures.signedByKey(content, r.validator, r.signature)) revert Denied(r.validator);
    }
}
