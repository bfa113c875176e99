// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "./IBench.sol";
import {IBonds} from "./IBonds.sol";
import {IPolicies} from "./IPolicies.sol";
import {IRuns} from "./IRuns.sol";
import {ISignatures} from "./ISignatures.sol";

/// @title Cases and verdicts
/// @notice Who judges the submissions of a run, and how. A case lists submissions of one seat; the verdict is on each of them.
/// Soft: it earns nothing. Hard: everything of the seat within the window is revoked, the seat is banned and its stake slashed.
/// Silence of the accused convicts; a node, its operator or a validator that stands by the submissions may appeal, and then the
/// bench votes: everybody seated before the work, without the parties. A majority of the bench decides each submission.
/// @dev Who the validators are, and what money a verdict moves, is in IBench.
interface ICourt {
    /// @notice What of a policy it needs: see IPolicies.
    struct Terms {
        uint96 bond;
        uint96 reward;
        uint16 bondBps;
        uint16 finderBps;
        uint8 coSigners;
        uint96 penalty;
        uint96 fee;
        uint32 appeal;
        uint32 window;
        uint32 vote;
    }

    enum Stage {
        None,
        Open, // may be appealed
        Appealed, // is voted on
        Upheld, // soft: the submissions earn nothing; hard: the seat is convicted
        Undecided, // some found no majority: another validator may challenge again until `deadline`
        Cleared, // the submissions earn what they would have earned
        Split, // `upheld` earn nothing, the others what they would have earned
        Returned // none found a majority: the submissions earn what they would have earned, nobody loses its bond; the challenger may pay the jury
    }

    /// @notice A case against submissions of one seat; one brought as hard concerns one.
    struct Case {
        address challenger;
        uint40 earliest; // time of its oldest submission: jurors were seated before
        uint40 deadline; // of the present stage
        Stage stage;
        uint8 submissions; // how many it listed: they are bits 0 .. submissions - 1 of every bitmap, in the order of their events
        uint256 ring; // units still withheld, by epoch; zero when closed
        address coSigner; // of a hard case
        uint88 bond; // at risk for the challenger, and for the co-signer
        bool hard; // brought as hard; when Upheld or Split: convicted
        address appellant; // the validator that appealed at its own risk; zero: the seat itself
        uint8 jurors; // size of the bench without the parties; set by the appeal
        bool keyed; // appealed by the seat's key alone
        bool again; // challenged a second time, after a vote that decided nothing
        bool parted; // some of its submissions are gone
        uint256 samples; // of a hard case: those found false; bit i is sample i of the file. Zero: the sums over the seat's work
        uint256 excused; // places of those who may not vote: parties, and jurors that abstained
        uint256 gone; // submissions no longer in it: accused, or decided by the first vote
        uint256 upheld; // of a Split or Undecided case
        uint256 cleared; // likewise
    }

    /// @notice What some jurors of a case found alike.
    struct Ballot {
        uint256 foundFalse; // bit i: submission i earns nothing
        uint256 foundHard; // bit i: and is cheating; a part of foundFalse
        uint256 jurors; // bit k: the validator whose place is k
    }

    /// @notice A submission, as the case that took its units left it: one accused after a soft verdict stays Revoked. Submissions that a
    /// conviction of the seat revoked with the rest of the window stay Submitted.
    enum State {
        None,
        Submitted,
        Challenged,
        Appealed,
        Revoked,
        Cleared, // by a majority, or given back for want of one
        Undecided // still withheld: another validator may challenge again
    }

    /// @notice A validator's signed verdict on a submission.
    struct Receipt {
        address validator;
        uint256 samples; // accepted: those it checked; rejected: those it found false; bit i is sample i of the file. Zero: none by itself
        bytes32 details; // SHA-256 of the receipt's canonical JSON
        bytes signature; // ECDSA over Verdict(run, submission, outcome, samples, details); outcome 1: accept, 2: soft, 3: hard
    }

    error NoCommonSample();
    error TooManySubmissions(uint256 submissions, uint256 most);
    error InvalidBallot();

    event Challenged(
        uint256 indexed run,
        address indexed node,
        bytes32 indexed root,
        uint32 step,
        uint32 sequence,
        address challenger,
        bool hard,
        bytes32 evidence,
        address seat,
        uint256 number
    );
    /// @notice A case that found no majority has a new challenger and a last vote. It is a soft one now.
    event ChallengedAgain(
        uint256 indexed run, address indexed seat, uint256 number, address indexed challenger, bytes32 evidence
    );
    event CoSigned(
        uint256 indexed run, address indexed seat, uint256 number, address indexed coSigner, bytes32 details
    );
    event Appealed(uint256 indexed run, address indexed seat, uint256 number, address indexed appellant);
    event Voted(
        uint256 indexed run,
        address indexed seat,
        uint256 number,
        address indexed validator,
        uint256 foundFalse,
        uint256 foundHard,
        bytes32 receipts
    );
    event Abstained(
        uint256 indexed run, address indexed seat, uint256 number, address indexed validator, string reason
    );
    /// @param stage Undecided: the case may be challenged again; any other: it is over.
    /// @param upheld Bits of the submissions found false so far, `cleared` of those found good. Bits in neither went back unjudged.
    /// @param convicted The verdict was hard.
    /// @param units Revoked by this.
    /// @param slashed Taken from the seat's stake by this.
    event Settled(
        uint256 indexed run,
        address indexed seat,
        uint256 number,
        Stage stage,
        uint256 upheld,
        uint256 cleared,
        bool convicted,
        uint256 units,
        uint256 slashed
    );
    event Impeached(
        uint256 indexed run, address indexed validator, bytes32 indexed submission, address finder, uint256 slashed
    );

    // ---- reading ----------------------------------------------------------------------------------------------------

    function runs() external view returns (IRuns);
    function bonds() external view returns (IBonds);
    function bench() external view returns (IBench);
    function policies() external view returns (IPolicies);
    function signatures() external view returns (ISignatures);

    /// @notice Case `number` against `seat`; a seat's cases are counted from 1.
    function cases(uint256 run, address seat, uint256 number) external view returns (Case memory);

    /// @notice What was voted on a case so far, alike votes together. After a second challenge only those of the second vote.
    function ballots(uint256 run, address seat, uint256 number) external view returns (Ballot[] memory);

    /// @notice Whether `validator` voted on an appealed case, or abstained, or is barred from it as the seat's operator or key.
    function voted(uint256 run, address seat, uint256 number, address validator) external view returns (bool);

    /// @notice Whether `validator` may vote on an appealed case now.
    function isJuror(uint256 run, address seat, uint256 number, address validator) external view returns (bool);

    /// @notice What a challenger risks whose case withholds `units`: the policy's bond, or bondBps of what they are worth.
    function bondFor(uint256 run, uint256 units) external view returns (uint256);

    /// @notice The case in which a validator's hard verdict on a submission served: as second, or alone where none is needed.
    function charges(bytes32 submission, address signer) external view returns (uint256 number);

    function impeached(bytes32 submission, address validator) external view returns (bool);
    function stateOf(uint256 run, IRuns.SubmissionRef calldata ref) external view returns (State);

    /// @return keccak256(abi.encode(run, node, step, sequence, root))
    function submissionId(uint256 run, IRuns.SubmissionRef calldata ref) external pure returns (bytes32);

    // ---- Policies only ----------------------------------------------------------------------------------------------

    /// @notice Keeps what it needs of a new run's policy.
    function open(uint256 run, Terms calldata terms) external;

    // ---- cases ------------------------------------------------------------------------------------------------------

    /// @notice Disputes submissions of one seat: each that is upheld earns nothing, and is a strike. One bond for all, which grows
    /// with what they are worth; a challenger loses the bond of a case that had listed only what was cleared. It gets finderBps of the fees.
    /// @param list At most 255 submissions; those past their window or in a case already are left out, and those that have another bench than
    /// the first that is not: they need a case of their own.
    /// @param evidence EIP-712 digest of the challenger's verdict.
    function challenge(uint256 run, IRuns.SubmissionRef[] calldata list, bytes32 evidence)
        external
        returns (uint256 number);

    /// @notice Takes up a case that found no majority, as it stands, within `appeal` after the vote: once, and never the validators
    /// that brought it first. It is a soft case now; its jury may still find submissions hard.
    function challengeAgain(uint256 run, address seat, uint256 number, bytes32 evidence) external;

    /// @notice Accuses the author of a submission of cheating: if upheld, the seat is convicted. The submission must be within its window. No
    /// other case shields it, whoever brought or lost that: it leaves an open soft one (which ends when that empties it); a second
    /// hard one stands beside the first; and no verdict, not even a conviction of the seat, ends the matter before the window does.
    /// @param samples Those found false; all ones where the file as a whole is false. Only those that the second validator
    /// names too count. Zero: no sample is false by itself, and what the seat has done up to this submission is, taken together; then the
    /// second names none either, and whoever accepted a sample cannot be impeached for it.
    /// @param evidence EIP-712 digest of the challenger's verdict.
    /// @param second Another validator's receipt on the same submission, outcome 3; left aside where the policy asks for none.
    function accuse(
        uint256 run,
        IRuns.SubmissionRef calldata ref,
        uint256 samples,
        bytes32 evidence,
        Receipt calldata second
    ) external returns (uint256 number);

    /// @notice Asks the bench to vote. The seat's key or its operator calls: lost, it costs `bond` of the seat's lock, and what the
    /// key alone loses comes out of the seat's penalty; refused where nothing of either is left. Or a validator of the bench calls that
    /// stands by the submissions, with a bond of its own, where a juror is left without it. An appeal is lost where nothing is cleared,
    /// unless the case was brought as hard and is found merely false: then those who brought it pay the jury.
    function appeal(uint256 run, address seat, uint256 number) external;

    /// @notice A juror's verdict on each submission of the case. Decides at once what a majority of the bench has found.
    /// @param foundFalse Bit i: submission i of the case earns nothing.
    /// @param foundHard Bit i: and it is cheating; a part of foundFalse.
    /// @param receipts Digest of the receipts that the juror hands over after the close; zero: none.
    function vote(uint256 run, address seat, uint256 number, uint256 foundFalse, uint256 foundHard, bytes32 receipts)
        external;

    /// @notice A juror cannot judge the case: weights gone, machine in doubt. It costs the juror its pay and nothing more.
    /// @param reason At most 128 bytes.
    function abstain(uint256 run, address seat, uint256 number, string calldata reason) external;

    /// @notice Ends the stage of a case whose time is up. Silence of the accused convicts. Silence of the jury is charged to those
    /// who kept it, and gives the submissions back once nobody has challenged them again within `appeal`.
    function settle(uint256 run, address seat, uint256 number) external;

    /// @notice Slashes a validator that vouched for a sample of a submission convicted for that sample. Anyone may call it.
    /// @param number The hard case that convicted.
    /// @param accepted The validator's receipt, outcome 1.
    function impeach(uint256 run, IRuns.SubmissionRef calldata ref, uint256 number, Receipt calldata accepted)
        external
        returns (uint256 slashed);
}
