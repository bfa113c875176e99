// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IBench} from "./IBench.sol";
import {IBonds} from "./IBonds.sol";
import {ICourt} from "./ICourt.sol";
import {IWeights} from "./IWeights.sol";

/// @title Training runs
/// @notice A run has a budget, seats for nodes, submissions, and rewards that vest when submissions
/// can no longer be challenged. Policies live in IPolicies, weights and beacons in IWeights, verdicts in ICourt,
/// validators in IBench, their pay in IVouchers.
/// @dev Balance of this contract >= sum over runs of free + reserved; reserved = reward * all unclaimed units.
interface IRuns {
    // ---- types ------------------------------------------------------------------------------------------------------

    /// @notice What of a policy it needs: see IPolicies.
    struct Terms {
        address owner;
        uint88 reward;
        address gate;
        uint96 nodeStake;
        uint96 floor; // penalty + bond
        uint32 window;
        uint32 grace;
        uint32 notice;
        uint32 maxUnits;
        uint40 span;
        uint40 trial; // appeal + vote
        uint16 maxPerStep;
        uint8 leverage;
        uint8 strikes;
    }

    struct Funds {
        uint128 free; // unspent
        uint128 reserved; // owed to units not yet claimed
    }

    /// @notice What changes while a run lives. A time of zero: never.
    struct Status {
        uint40 pausedFrom; // from then on nothing is accepted
        uint40 defundedFrom; // from then on `leaving` backs no submission
        uint128 leaving; // what the owner takes out
    }

    /// @notice What submitting reads of one version of the weights, in one word. The rest is in IWeights.
    struct Head {
        bytes17 beacon; // its first 17 bytes, and it has no others; zero: not drawn yet
        uint40 time; // of publication
        uint40 superseded; // when the next version was published; zero: this is the newest
        uint40 number; // block of publication
    }

    enum Role {
        None,
        Active,
        Left, // of its own, or for want of stake; may come back
        Banned // by the owner, and works on until `until`; or convicted. For good
    }

    /// @notice A seat is named by the first key that held it, and keeps that name when its key is rotated.
    struct Seat {
        address operator;
        Role role;
        bool rotated; // `key` signs, and the name no longer does
        bool swept; // a hard verdict took everything in the window
        uint40 since; // block in which key, operator and hardware took their present form
        uint32 worth; // units whose reward its stake answers for: it may have so many at risk of a verdict, and one more for each
        // of `proven`, up to `leverage` times as many
        uint256 ring; // units within the window
        uint64 vested; // units matured and unclaimed
        uint32 step; // newest step worked on
        uint16 next; // next sequence number for that step
        uint32 held; // units in open cases
        uint32 proven; // units it was ever paid for
        uint16 openCases; // cases not yet over
        uint16 openHard; // hard ones among them
        uint8 strikes; // in the window that began at strikesSince
        uint40 strikesSince;
        uint96 locked; // of the operator's stake
        uint64 safe; // of `vested`, what had matured before the first open hard case
        uint40 until; // end of service of a seat that is Left or Banned
        uint8 hardware;
        uint24 cases; // cases there ever were
        address key; // of a rotated seat
        uint96 spent; // of its penalty, by lost appeals of its key; all of it, once convicted
        uint40 shutUntil; // until then an open hard case keeps it from submitting
    }

    struct Submission {
        uint40 time;
        uint32 units;
        uint24 number; // of the seat's case that last took its units; zero: none did
        uint8 index; // in that case
    }

    /// @notice Where the units of a submission are that gets accused.
    enum Whereabouts {
        Seat, // where they were born, or returned to
        Case, // another one holds them
        Revoked
    }

    /// @notice Names a submission; its id is the hash of this and the run.
    struct SubmissionRef {
        address node; // the key that submitted it
        uint32 step;
        uint32 sequence;
        bytes32 root; // SHA-256 of the rollout file
    }

    struct Item {
        bytes32 root;
        uint32 units;
    }

    /// @notice What a soft case has taken.
    struct Withheld {
        address seat;
        uint256 number; // of the case; a seat's cases are counted from 1
        uint256 ring; // units by epoch
        uint256 earliest; // time of the oldest submission
        uint256 taken; // bit i: submission i of the list is in the case
        uint256[] parcels; // of each that is, 32 bits and 8 to a word: its units, and above them 3 bits of its place in the ring
    }

    /// @notice What Court has found, for Runs to carry out.
    struct Ruling {
        bool unshut; // the case was hard so far, and no longer is
        bool over; // the case is closed
        bool convicts;
        bool keyed; // a lost appeal was the key's alone
        address challenger;
        uint256 back; // units that return, by epoch
        uint256 revoked; // units that do not
        uint256 strikes;
        uint96 fee; // for each strike
        uint96 cost; // of a lost appeal of the seat's own, for the jury; zero: it lost none
        uint96 penalty; // of a conviction
        uint16 finderBps; // of fees and penalty, to the challenger
    }

    /// @notice What came of a ruling.
    struct Outcome {
        uint256 units; // revoked
        uint256 slashed; // of the seat's stake
        uint256 paid; // of that, what a lost appeal costs: out of the seat's lock, and for the bench to take out of the operator's
        address operator; // of the seat
    }

    // ---- errors -----------------------------------------------------------------------------------------------------

    error InvalidUnits(uint256 units, uint256 most);
    error Unfunded(uint256 available, uint256 wanted);
    error WrongStep(uint256 step, uint256 expected);
    error StaleStep(uint256 step);
    error WrongSequence(uint256 sequence, uint256 expected);
    error WrongBeacon(bytes32 beacon, bytes32 expected);
    error SeatTooYoung(uint256 since, uint256 published);
    error RunPaused(uint256 since);
    error CaseOpen(uint256 openCases);
    error Suspended(uint256 until);
    error Overexposed(uint256 units, uint256 most);
    error BeaconPending(uint256 source);

    // ---- events -----------------------------------------------------------------------------------------------------

    event Funded(uint256 indexed run, int256 amount);
    event Defunding(uint256 indexed run, uint256 amount, uint256 from);
    event Paused(uint256 indexed run, bool paused, uint256 from);
    event Joined(uint256 indexed run, address indexed node, address indexed operator, bytes peer, uint8 hardware);
    event Rotated(uint256 indexed run, address indexed node, address indexed seat, bytes peer);
    event Offered(uint256 indexed run, address indexed seat, address indexed to, uint256 deadline);
    event HandedOver(uint256 indexed run, address indexed seat, address indexed to, address from);
    event Left(uint256 indexed run, address indexed seat, Role role, uint256 until);
    event Released(uint256 indexed run, address indexed seat, address indexed operator, uint256 amount);
    event Submitted(
        uint256 indexed run, address indexed node, bytes32 indexed root, uint32 step, uint32 sequence, uint32 units
    );
    event Skipped(uint256 indexed run, address indexed node, uint32 step, uint32 sequence);
    event Claimed(uint256 indexed run, address indexed seat, address indexed operator, uint256 units, uint256 amount);

    // ---- reading ----------------------------------------------------------------------------------------------------

    function token() external view returns (IERC20);
    function bonds() external view returns (IBonds);
    function court() external view returns (ICourt);
    function bench() external view returns (IBench);
    function weights() external view returns (IWeights);

    function funds(uint256 run) external view returns (Funds memory);

    function status(uint256 run) external view returns (Status memory);
    /// @notice What submitting reads of version `step` of the weights.
    function heads(uint256 run, uint32 step) external view returns (Head memory);

    /// @notice The seat that `node` holds or held.
    function seats(uint256 run, address node) external view returns (Seat memory);

    /// @notice Name of the seat that `node` holds or held: the first key it had.
    function seatOf(uint256 run, address node) external view returns (address seat);

    /// @notice Who answers for a seat, the key that signs for it now, and what the seat can lose.
    function parties(uint256 run, address seat)
        external
        view
        returns (address operator, address key, uint256 locked, uint256 spent);

    /// @notice Who may take over a seat, and until when.
    function offers(uint256 run, address seat) external view returns (address to, uint40 deadline);

    function submissions(bytes32 submission) external view returns (Submission memory);

    /// @return ready Units that may be claimed now.
    /// @return pending Units that still wait: for their window, or for an open case.
    function claimable(uint256 run, address node) external view returns (uint256 ready, uint256 pending);

    // ---- runs -------------------------------------------------------------------------------------------------------

    /// @notice Adds to what pays rewards, paid by the caller (who approved it before).
    function fund(uint256 run, uint128 amount) external;

    /// @notice Announces that the owner takes `amount` of the free budget out (at most what is then free). Until the notice
    /// has passed all of it still backs submissions; from then on `amount` backs none. Replaces an earlier announcement;
    /// zero cancels it.
    function defund(uint256 run, uint128 amount) external;

    /// @notice Pays the owner what was announced, once the notice has passed.
    function collect(uint256 run) external returns (uint256 amount);

    /// @notice Stops new submissions after the notice, or lets them go on at once. Verdicts, claims and withdrawals can never
    /// be stopped.
    function pause(uint256 run, bool on) external;

    // ---- seats ------------------------------------------------------------------------------------------------------

    /// @notice Seats a node for the calling operator, with the node's signed consent. Called again, it renews the seat: back
    /// from having left, its stake locked in full again, another hardware class.
    /// @param peer Bytes of the node's libp2p PeerID; at most 64.
    /// @param deadline Last block time at which the signatures count.
    /// @param nodeSig The node's ECDSA signature over Join(run, operator, node, keccak256(peer), hardware, deadline).
    /// @param gateSig Signature (ECDSA or ERC-1271) of the run's gate over Invite(run, node, deadline), where it has one.
    function join(
        uint256 run,
        address node,
        bytes calldata peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata nodeSig,
        bytes calldata gateSig
    ) external;

    /// @notice Gives the seat of `node` a new signing key; the operator calls. Submissions of the old key keep their names and
    /// verdicts, and the old key can sign nothing more.
    /// @param nodeSig The new key's signature over Join, as for `join`.
    function rotate(
        uint256 run,
        address node,
        address newNode,
        bytes calldata peer,
        uint256 deadline,
        bytes calldata nodeSig
    ) external;

    /// @notice Offers the seat of `node`, with its locked stake, unclaimed rewards and open cases, to another operator.
    /// @param deadline Last block time at which it may be accepted.
    function offer(uint256 run, address node, address to, uint40 deadline) external;

    /// @notice Takes over an offered seat.
    function accept(uint256 run, address node) external;

    /// @notice Ends the seat's service now. Its operator may call it; anyone, when its stake no longer covers penalty and bond.
    /// The stake stays locked until `release`.
    function leave(uint256 run, address node) external;

    /// @notice Bars a node from further work once the owner's notice has passed; what it earned is decided by verdicts alone.
    function ban(uint256 run, address node) external;

    /// @notice Frees the stake of a seat, a span after its service and when its cases are closed. Anyone may
    /// call it.
    function release(uint256 run, address node) external;

    // ---- submissions -------------------------------------------------------------------------------------------------------

    /// @notice Commits the caller to a rollout file. Reverts unless the beacon is that of a current head (which the
    /// first submission on it draws) and the sequence is the next one, so a reorg or a lost transaction never turns honest work into a fault.
    function submit(uint256 run, bytes32 root, uint32 step, uint32 sequence, uint32 units, bytes32 beacon) external;

    /// @notice Commits several files of one step at once, their sequence numbers counted up from `sequence`.
    function submitMany(uint256 run, uint32 step, uint32 sequence, bytes32 beacon, Item[] calldata items) external;

    /// @notice Gives up one sequence number in the open; a strike.
    function skip(uint256 run, uint32 step, uint32 sequence, bytes32 beacon) external;

    // ---- rewards ----------------------------------------------------------------------------------------------------

    /// @notice Pays the operator what has matured. Anyone may call it.
    function claim(uint256 run, address node) external returns (uint256 amount);

    // ---- Policies only ----------------------------------------------------------------------------------------------

    /// @notice Keeps what it needs of a new run's policy.
    function open(uint256 run, Terms calldata terms) external;

    // ---- Weights only -----------------------------------------------------------------------------------------------

    /// @notice Makes version `step` the head, and supersedes the one before.
    function advance(uint256 run, uint32 step) external;

    /// @notice Writes down the beacon of a head.
    function draw(uint256 run, uint32 step, bytes17 beacon) external;

    // ---- Court only -------------------------------------------------------------------------------------------------

    /// @notice Takes submissions of one seat into a new soft case: their units leave the ring until it is settled. Those past their
    /// window or in a case already are left out, so that nobody can make a long list fail; some must remain. So are those that have
    /// another bench than the first that remains: each is judged by its own.
    function withhold(uint256 run, SubmissionRef[] calldata list) external returns (Withheld memory);

    /// @notice Takes one submission into a new hard case. From here on nothing that matures is paid, and the seat cannot submit for
    /// appeal + vote, unless it was kept from it within the last span.
    /// @return number Of the new case.
    /// @return ring The submission's units at their epoch, where the seat had them.
    /// @return moved Whether they are the new case's now: not those that a case, or a conviction of the seat, revoked.
    function accuse(uint256 run, address seat, bytes32 submission, Whereabouts units)
        external
        returns (uint256 number, uint256 ring, bool moved);

    /// @notice Carries out what Court found: returns or revokes units, counts strikes, convicts, slashes.
    function settle(uint256 run, address seat, Ruling calldata r) external returns (Outcome memory);
}
