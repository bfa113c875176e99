// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBonds} from "./IBonds.sol";
import {IRuns} from "./IRuns.sol";

/// @title Validators and verdicts
/// @notice Who judges the submissions of a run, and how. A soft verdict: this submission earns nothing. A hard verdict: everything of the
/// seat within the window is revoked, the seat is banned and its stake slashed. Silence of the accused convicts; a node, its
/// operator or a validator that stands by the submission may appeal, and then validators vote. Without a quorum nobody loses
/// stake, and the verdict is soft.
/// @dev A submission is judged only by validators that were seated before it was submitted, and a validator's removal takes effect
/// when every case on what was submitted before it was announced is closed: no one can arrange the bench around a case.
interface ICourt {
    struct Validator {
        bool approved; // by the run's owner
        uint40 since; // when it took its seat; zero: it has none
        uint40 until; // end of service; zero: none in sight
        uint16 openCases; // in which its bond is at risk
        uint128 locked; // of its stake
    }

    enum Stage {
        None,
        Open, // may be appealed
        Appealed, // is voted on
        Upheld, // soft: the submissions earn nothing; hard: the seat is convicted
        Undecided, // no quorum: the submissions earn nothing, nobody loses stake
        Cleared // the submissions earn what they would have earned
    }

    /// @notice A case against submissions of one seat; soft ones may list many, hard ones concern one.
    struct Case {
        address challenger;
        uint40 earliest; // time of its oldest submission: jurors were seated before
        uint40 deadline; // of the present stage
        Stage stage;
        uint8 submissions; // how many; those accused have left a soft one
        uint256 ring; // their units by epoch; zero when closed
        address appellant; // the validator that appealed at its own risk; zero: the seat itself
        uint8 uphold; // votes
        uint8 reject;
        address coSigner; // of a hard case
        bool hard;
        uint256 samples; // of a hard case: those found false; bit i is sample i of the file. Zero: the sums over the seat's work
    }

    /// @notice A submission, as the case that took its units left it: one accused after a soft verdict stays Revoked. Submissions that a
    /// conviction of the seat revoked with the rest of the window stay Submitted.
    enum State {
        None,
        Submitted,
        Challenged,
        Appealed,
        Revoked,
        Cleared
    }

    /// @notice A validator's signed verdict on a submission.
    struct Receipt {
        address validator;
        uint256 samples; // accepted: those it checked; rejected: those it found false; bit i is sample i of the file. Zero: none by itself
        bytes32 details; // SHA-256 of the receipt's canonical JSON
        bytes signature; // ECDSA over Verdict(run, submission, outcome, samples, details); outcome 1: accept, 2: soft, 3: hard
    }

    error NotOnBench(address validator);
    error NoCommonSample();
    error TooFewValidators(uint256 seated, uint256 needed);
    error TooManySubmissions(uint256 submissions, uint256 most);

    event ValidatorApproved(uint256 indexed run, address indexed validator, bool approved);
    event ValidatorSeated(uint256 indexed run, address indexed validator, bool seated, uint256 until);
    event ValidatorReinforced(uint256 indexed run, address indexed validator, uint256 locked);
    event ValidatorReleased(uint256 indexed run, address indexed validator, uint256 amount);
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
    event CoSigned(
        uint256 indexed run, address indexed seat, uint256 number, address indexed coSigner, bytes32 details
    );
    event Appealed(uint256 indexed run, address indexed seat, uint256 number, address indexed appellant);
    event Voted(uint256 indexed run, address indexed seat, uint256 number, address indexed validator, bool uphold);
    event Settled(
        uint256 indexed run,
        address indexed seat,
        uint256 number,
        Stage verdict,
        bool hard,
        uint256 units,
        uint256 slashed
    );
    event Impeached(
        uint256 indexed run, address indexed validator, bytes32 indexed submission, address finder, uint256 slashed
    );

    // ---- reading ----------------------------------------------------------------------------------------------------

    function runs() external view returns (IRuns);
    function bonds() external view returns (IBonds);

    function policy(uint256 run) external view returns (IRuns.Policy memory);

    function validators(uint256 run, address validator) external view returns (Validator memory);

    /// @notice How many validators have a seat and no end of service in sight.
    function seated(uint256 run) external view returns (uint256);

    /// @notice Case `number` against `seat`; a seat's cases are counted from 1.
    function cases(uint256 run, address seat, uint256 number) external view returns (Case memory);

    function voted(uint256 run, address seat, uint256 number, address validator) external view returns (bool);

    /// @notice The case in which a validator's hard verdict on a submission served: as second, or alone where none is needed.
    function charges(bytes32 submission, address signer) external view returns (uint256 number);

    function impeached(bytes32 submission, address validator) external view returns (bool);
    function stateOf(uint256 run, IRuns.SubmissionRef calldata ref) external view returns (State);

    // ---- the bench --------------------------------------------------------------------------------------------------

    /// @notice Lets `validator` take a seat; or withdraws that, which ends its service window + appeal + vote later. The run's
    /// owner calls.
    function approve(uint256 run, address validator, bool on) external;

    /// @notice Takes the caller's validator seat; or gives it up, which ends its service window + appeal + vote later.
    function enlist(uint256 run, bool on) external;

    /// @notice Locks more of the caller's stake in its seat: every open case puts one bond of it at risk.
    function reinforce(uint256 run, uint128 amount) external;

    /// @notice Ends the service of a validator whose stake no longer covers one bond, as it would itself. Anyone may call it.
    function unseat(uint256 run, address validator) external;

    /// @notice Frees a validator's stake, 2 * (window + appeal + vote) after its service and when its cases are closed. Until
    /// then it answers for what it signed. Anyone may call it.
    function release(uint256 run, address validator) external;

    // ---- Runs only --------------------------------------------------------------------------------------------------

    /// @notice Takes a new run under its judgement, if its policy is sound.
    function open(uint256 run, IRuns.Policy calldata p) external;

    /// @notice Reverts where verdicts can be appealed but a jury could not be found: quorum, challenger and co-signer.
    function requireJury(uint256 run) external view;

    // ---- cases ------------------------------------------------------------------------------------------------------

    /// @notice Disputes submissions of one seat: if upheld, they earn nothing, and each is a strike. One bond for all.
    /// @param list At most 255 submissions; those past their window or in a case already are left out.
    /// @param evidence EIP-712 digest of the challenger's verdict.
    function challenge(uint256 run, IRuns.SubmissionRef[] calldata list, bytes32 evidence)
        external
        returns (uint256 number);

    /// @notice Accuses the author of a submission of cheating: if upheld, the seat is convicted. The submission must be within its window,
    /// or in an open soft case. No other case shields it: it leaves an open soft one (which ends when that empties it); a
    /// second hard one stands beside the first; and a soft verdict or an acquittal does not end the matter before the window does.
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

    /// @notice Asks the other validators to vote. The seat's key or its operator calls, with a bond that comes out of the
    /// seat's own lock; or a validator of the bench that stands by the submission, with its own bond.
    function appeal(uint256 run, address seat, uint256 number) external;

    /// @notice A juror's verdict on the case as brought: all of its submissions, and of a hard case every sample named. A juror who
    /// finds a hard case merely soft does not vote.
    function vote(uint256 run, address seat, uint256 number, bool uphold) external;

    /// @notice Closes a case whose time is up. Silence of the accused convicts; silence of the jury leaves a soft verdict, and
    /// costs nobody stake.
    function settle(uint256 run, address seat, uint256 number) external;

    /// @notice Slashes a validator that vouched for a sample of a submission convicted for that sample. Anyone may call it.
    /// @param number The hard case that convicted.
    /// @param accepted The validator's receipt, outcome 1.
    function impeach(uint256 run, IRuns.SubmissionRef calldata ref, uint256 number, Receipt calldata accepted)
        external
        returns (uint256 slashed);
}
