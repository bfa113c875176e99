// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBonds} from "./IBonds.sol";
import {ICourt} from "./ICourt.sol";
import {IRuns} from "./IRuns.sol";

/// @title Validators: their seats, their stake, and who judges what
/// @notice Validators of a run take seats with the owner's approval, risk a bond in each case they are a party to, and judge as jurors. This
/// contract also pays what verdicts move: bonds lost, jurors, those who were wronged.
/// @dev The bench of a case is fixed by the time of its oldest submission: validators seated before it that had not announced
/// their end by then. Each of them serves until every case on that submission is over, so nobody can arrange a bench around a
/// case, and its size is known when the case is appealed.
interface IBench {
    struct Validator {
        uint128 locked; // of its stake
        uint128 atRisk; // of that, in open cases it is a party to
        bool approved; // by the run's owner
        uint40 since; // when it took its seat; zero: it has none
        uint40 until; // end of service; zero: none in sight
        uint8 place; // bit that stands for it in ballots; fixed when it first takes a seat
    }

    /// @notice What of a policy it needs.
    struct Terms {
        address owner;
        uint96 validatorStake;
        uint96 bond;
        uint96 juryFee; // zero: verdicts are instant
        uint40 span;
        uint16 finderBps;
        uint8 coSigners;
    }

    /// @notice What a vote ends with, for the bench to carry out.
    struct Payout {
        uint256 earliest; // of the case
        address challenger;
        address coSigner; // zero: none
        address appellant; // zero: the seat itself
        uint256 bond; // which challenger and co-signer risked
        uint256 lost; // of that, by each of them
        uint256 paid; // by the seat's operator, for a lost appeal: out of what backed the seat
        address operator; // of the seat
        uint256 members; // submissions voted on
        uint256 upheld;
        uint256 foundHard; // of those
        uint256 cleared;
        uint256 jurors;
        uint256 excused;
        bool overcharged; // brought as hard, and found merely false: those who brought it pay the jury
        bool late; // the time was up before all was decided: silence is charged
        ICourt.Ballot[] ballots;
    }

    error NotOnBench(address validator);
    error TooFewValidators(uint256 seated, uint256 needed);
    error BenchFull();

    event ValidatorApproved(uint256 indexed run, address indexed validator, bool approved);
    event ValidatorSeated(uint256 indexed run, address indexed validator, bool seated, uint256 until);
    event ValidatorReinforced(uint256 indexed run, address indexed validator, uint256 locked);
    event ValidatorReleased(uint256 indexed run, address indexed validator, uint256 amount);
    /// @notice A juror that neither voted nor abstained in time paid one juror's pay.
    event Silent(uint256 indexed run, address indexed seat, uint256 number, address indexed validator, uint256 charged);

    // ---- reading ----------------------------------------------------------------------------------------------------

    function runs() external view returns (IRuns);
    function court() external view returns (ICourt);
    function bonds() external view returns (IBonds);

    function validators(uint256 run, address validator) external view returns (Validator memory);

    /// @notice How many validators have a seat and no end of service in sight.
    function seated(uint256 run) external view returns (uint256);

    /// @notice How many validators are the bench of what is submitted at `time`.
    function benchAt(uint256 run, uint256 time) external view returns (uint256);

    /// @notice What is submitted from `from` until `until`, both included, has the same bench as what is submitted at `time`.
    function termOf(uint256 run, uint256 time) external view returns (uint256 from, uint256 until);

    /// @notice The validator whose place is `place`.
    function rosters(uint256 run, uint256 place) external view returns (address);

    // ---- the bench --------------------------------------------------------------------------------------------------

    /// @notice Lets `validator` take a seat; or withdraws that, which ends its service one span later: see
    /// IRuns.Policy. The run's owner calls.
    function approve(uint256 run, address validator, bool on) external;

    /// @notice Takes the caller's validator seat; or gives it up, which ends its service one span later.
    function enlist(uint256 run, bool on) external;

    /// @notice Locks more of the caller's stake in its seat: every open case puts a bond of it at risk.
    function reinforce(uint256 run, uint96 amount) external;

    /// @notice Ends the service of a validator whose stake no longer covers one bond, as it would itself. Anyone may call it.
    function unseat(uint256 run, address validator) external;

    /// @notice Frees a validator's stake, two spans after its service and when its cases are closed. Until
    /// then it answers for what it signed. Anyone may call it.
    function release(uint256 run, address validator) external;

    // ---- for other contracts ----------------------------------------------------------------------------------------

    /// @notice Reverts where verdicts can be appealed but a jury could not be found: one juror beside
    /// challenger and co-signer.
    function requireJury(uint256 run) external view;

    // ---- Court only -------------------------------------------------------------------------------------------------

    /// @notice Keeps what it needs of a new run's policy.
    function open(uint256 run, Terms calldata terms) external;

    /// @notice The bit of a validator of the bench of what was submitted at `time`; zero of anybody else.
    function bitOf(uint256 run, address who, uint256 time) external view returns (uint256);

    /// @notice Makes validators of the bench parties to a case: a bond of each is at risk, unless verdicts are instant.
    /// @param second Zero: there is none.
    function sit(uint256 run, address first, address second, uint256 time, uint256 bond) external;

    /// @notice Ends what parties to a case risk.
    /// @param bond Of challenger and co-signer; an appellant risks the policy's.
    function rise(uint256 run, address challenger, address coSigner, address appellant, uint256 bond) external;

    /// @notice The jury of a case: all of the bench but the parties.
    /// @param excused Places of those who are none already.
    /// @return barred Places of those who may not vote.
    /// @return jurors How many may.
    function empanel(uint256 run, uint256 time, uint256 excused, address[5] calldata parties)
        external
        view
        returns (uint256 barred, uint256 jurors);

    /// @notice Carries out what a vote ended with: takes what is lost, pays jurors and those who were wronged.
    function payOut(uint256 run, address seat, uint256 number, Payout calldata x) external;

    /// @notice Takes a bond of a validator that vouched for what was false.
    function impeach(uint256 run, address validator, address finder) external returns (uint256 slashed);
}
