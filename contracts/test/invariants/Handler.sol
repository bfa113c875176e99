// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IBench} from "../../src/interfaces/IBench.sol";
import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {Denied, InsufficientStake, TooEarly, TooLate, WrongState, ZeroAmount} from "../../src/interfaces/Errors.sol";
import {IBonds} from "../../src/interfaces/IBonds.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {IVouchers} from "../../src/interfaces/IVouchers.sol";
import {World} from "../support/World.sol";

/// @title Random people doing random things in three runs at once
/// @notice Every action picks something that makes sense by its seed. The contracts may refuse it with one of their own
/// errors; anything else (a panic, a failed assertion, running dry) fails the campaign. On the way it keeps its own books.
contract Handler is World {
    struct Chair {
        uint256 run;
        address seat; // its name
        uint256 key; // that signs for it now
    }

    struct Job {
        uint256 run;
        IRuns.SubmissionRef ref;
        address seat;
        uint256 units;
        uint256 time;
    }

    struct Trial {
        uint256 run;
        address seat;
        uint256 number;
        address node;
    }

    uint256 internal constant RUNS = 3;
    uint256 internal constant TRAINER_KEY = 0x77;

    Chair[] public chairs;
    Job[] internal jobs;
    Trial[] internal trials;
    address[] internal people_;
    uint256 internal fresh = 0xC0FFEE; // next unused key
    uint256 internal stirred;
    mapping(bytes4 => bool) internal known;
    mapping(bytes4 => uint256) public done; // by selector

    // the books
    mapping(uint256 run => uint256) public submitted;
    mapping(uint256 run => uint256) public claimed;
    mapping(uint256 run => uint256) public revoked;
    mapping(uint256 run => mapping(address seat => uint256)) public claimedBy;
    mapping(uint256 run => mapping(address seat => uint256)) public lockedIn;
    mapping(uint256 run => mapping(address seat => uint256)) public lost;
    uint256 public excess; // verdicts that took more than they may
    uint256 public stray; // verdicts that touched another seat's lock
    mapping(address account => uint256) public ripeAt; // when all of what is leaving may leave
    uint256 public early; // stake paid out before its delay

    constructor() {
        deploy();
        IPolicies.Policy memory p = short();
        wake(p);
        (p.appeal, p.vote) = (0, 0); // instant verdicts
        wake(p);
        p = short();
        // one signature convicts, one vote decides, a small seat that fees and bonds can bring below its floor
        (p.coSigners, p.leverage, p.fee, p.bondBps) = (0, 1, 0, 0);
        (p.nodeStake, p.validatorStake) = (p.penalty + p.bond, p.bond);
        wake(p);
        for (uint256 i; i < 3; ++i) {
            people_.push(operators[i]);
        }
        for (uint256 i; i < 5; ++i) {
            people_.push(validators[i]);
        }
        people_.push(SINK);
        people_.push(OWNER);
        bytes4[22] memory errors = [
            Denied.selector,
            InsufficientStake.selector,
            TooEarly.selector,
            TooLate.selector,
            WrongState.selector,
            ZeroAmount.selector,
            IRuns.InvalidUnits.selector,
            IRuns.Unfunded.selector,
            IRuns.WrongStep.selector,
            IRuns.StaleStep.selector,
            IRuns.WrongSequence.selector,
            IRuns.WrongBeacon.selector,
            IRuns.SeatTooYoung.selector,
            IRuns.RunPaused.selector,
            IRuns.CaseOpen.selector,
            IRuns.Suspended.selector,
            IRuns.Overexposed.selector,
            IBench.NotOnBench.selector,
            ICourt.NoCommonSample.selector,
            ICourt.TooManySubmissions.selector,
            ICourt.InvalidBallot.selector,
            IBench.TooFewValidators.selector
        ];
        for (uint256 i; i < errors.length; ++i) {
            known[errors[i]] = true;
        }
    }

    function short() internal pure returns (IPolicies.Policy memory p) {
        p = policy();
        (p.window, p.appeal, p.vote, p.grace, p.notice) = (1_000, 300, 500, 100, 150);
        (p.maxUnits, p.maxPerStep, p.reward) = (3_000, 8, uint96(MUR / 20));
        p.trainer = vm.addr(TRAINER_KEY);
    }

    /// @dev A run with a seat of each operator, its bench, and its first weights.
    function wake(IPolicies.Policy memory p) internal {
        uint256 run_ = policies.create(p, SPEC);
        runs.fund(run_, 2_000 * MUR);
        vouchers.fund(run_, 10 * MUR);
        for (uint256 i; i < 3; ++i) {
            take(run_, operators[i]);
        }
        for (uint256 v; v < 5; ++v) {
            approve(run_, validators[v], true);
            enlist(run_, validators[v], true);
        }
        publishBy(p.trainer, run_);
    }

    // ---- actions ----------------------------------------------------------------------------------------------------

    function tick(uint256 seed) external {
        seed = stir(seed);
        pass(bound(seed, 1, 250));
    }

    function leap(uint256 seed) external {
        seed = stir(seed);
        pass(seed % 6 == 0 ? DELAY : bound(seed, 250, 700));
    }

    function publishNext(uint256 seed) external {
        seed = stir(seed);
        publishIn(aRun(seed));
    }

    function submission(uint256 seed) public {
        seed = stir(seed);
        submitFrom(aChair(seed), seed);
    }

    function submitFrom(Chair memory c, uint256 seed) internal {
        address node = vm.addr(c.key);
        IRuns.Seat memory s = runs.seats(c.run, c.seat);
        bool young = s.since >= weights.publications(c.run, weights.published(c.run) - 1).number;
        if (young || s.next == 8) publishIn(c.run);
        (uint32 step, uint32 sequence) = next(c);
        bytes32 beacon = beaconOf(c.run, step);
        uint32 units = uint32(bound(seed >> 32, 1, 1_500));
        bytes32 root = keccak256(abi.encode(c.run, node, step, sequence, jobs.length));
        bytes memory data = abi.encodeCall(runs.submit, (c.run, root, step, sequence, units, beacon));
        if (attempt(node, address(runs), data)) note(c, IRuns.SubmissionRef(node, step, sequence, root), units);
    }

    function submissionAgain(uint256 seed) external {
        seed = stir(seed);
        submission(seed);
    }

    function submissionMuch(uint256 seed) external {
        seed = stir(seed);
        Chair memory c = aChair(seed);
        address node = vm.addr(c.key);
        (uint32 step, uint32 sequence) = next(c);
        bytes32 beacon = beaconOf(c.run, step);
        IRuns.Item[] memory items = new IRuns.Item[](seed % 5);
        for (uint256 i; i < items.length; ++i) {
            items[i] = IRuns.Item(keccak256(abi.encode(jobs.length + i)), uint32(bound(seed >> i, 1, 600)));
        }
        bytes memory data = abi.encodeCall(runs.submitMany, (c.run, step, sequence, beacon, items));
        if (!attempt(node, address(runs), data)) return;
        for (uint32 i; i < items.length; ++i) {
            note(c, IRuns.SubmissionRef(node, step, sequence + i, items[i].root), items[i].units);
        }
    }

    function skip(uint256 seed) external {
        seed = stir(seed);
        Chair memory c = aChair(seed);
        (uint32 step, uint32 sequence) = next(c);
        bytes32 beacon = beaconOf(c.run, step);
        attempt(vm.addr(c.key), address(runs), abi.encodeCall(runs.skip, (c.run, step, sequence, beacon)));
    }

    function dispute(uint256 seed) external {
        seed = stir(seed);
        (bool some, Job memory first) = aJob(seed);
        if (!some) return submission(seed);
        IRuns.SubmissionRef[] memory found = new IRuns.SubmissionRef[](4);
        uint256 many;
        for (uint256 i = jobs.length; i > 0 && many < 1 + (seed >> 8) % 4; --i) {
            Job storage j = jobs[i - 1];
            if (j.run == first.run && j.seat == first.seat) found[many++] = j.ref;
        }
        assembly {
            mstore(found, many)
        }
        verdict(
            aValidator(seed >> 16), first.run, first.seat, abi.encodeCall(court.challenge, (first.run, found, EVIDENCE))
        );
    }

    function accuse(uint256 seed) external {
        seed = stir(seed);
        (bool some, Job memory j) = seed % 2 == 0 ? aDisputed(seed) : aJob(seed);
        if (!some) return submission(seed);
        uint256 w = (seed >> 24) % 5;
        uint256 mask = (seed >> 32) % 4 == 0 ? 1 : type(uint256).max;
        uint256 named = (seed >> 36) % 4 == 0 ? 0 : 3;
        if (named == 0 && (seed >> 38) % 4 != 0) mask = 0;
        bytes memory signature = signVerdict(j.run, court.submissionId(j.run, j.ref), 3, mask, validatorKeys[w]);
        ICourt.Receipt memory second = ICourt.Receipt(validators[w], mask, EVIDENCE, signature);
        verdict(
            aValidator(seed >> 16), j.run, j.seat, abi.encodeCall(court.accuse, (j.run, j.ref, named, EVIDENCE, second))
        );
    }

    function appeal(uint256 seed) external {
        seed = stir(seed);
        (bool found, Trial memory t) = aTrial(seed, ICourt.Stage.Open);
        if (!found) return;
        address who = runs.seats(t.run, t.seat).operator;
        if (seed % 3 == 1) who = t.node;
        if (seed % 3 == 2) who = aValidator(seed >> 16);
        bool done_ = attempt(who, address(court), abi.encodeCall(court.appeal, (t.run, t.seat, t.number)));
        if (done_ && (seed >> 24) % 3 != 0) poll(t, seed >> 8, 5);
    }

    /// @dev Several submissions of one seat, a case on them, and the vote on it, all in a row.
    function trial(uint256 seed) external {
        seed = stir(seed);
        Chair memory c = aChair(seed);
        IRuns.SubmissionRef[] memory list = new IRuns.SubmissionRef[](2 + seed % 3);
        for (uint256 i; i < list.length; ++i) {
            uint256 before = jobs.length;
            submitFrom(c, (seed >> i) % (400 << 32));
            if (jobs.length == before) return;
            list[i] = jobs[before].ref;
        }
        address challenger = aValidator(seed >> 16);
        verdict(challenger, c.run, c.seat, abi.encodeCall(court.challenge, (c.run, list, EVIDENCE)));
        IRuns.Seat memory s = runs.seats(c.run, c.seat);
        Trial memory t = Trial(c.run, c.seat, s.cases, address(0));
        if (!attempt(s.operator, address(court), abi.encodeCall(court.appeal, (t.run, t.seat, t.number)))) return;
        poll(t, seed, 2 + (seed >> 24) % 4);
    }

    function vote(uint256 seed) external {
        seed = stir(seed);
        (bool found, Trial memory t) = aTrial(seed, ICourt.Stage.Appealed);
        if (found) poll(t, seed, seed % 3 == 0 ? 1 : 5);
    }

    /// @dev Jurors vote alike, one after another.
    function poll(Trial memory t, uint256 seed, uint256 many) internal {
        ICourt.Case memory c = court.cases(t.run, t.seat, t.number);
        uint256 all = (1 << c.submissions) - 1;
        uint256 foundFalse = seed % 3 == 0 ? 0 : all;
        if (c.submissions > 1 && (seed >> 40) % 2 == 0) foundFalse = all & (seed >> 48); // some of them
        uint256 foundHard = c.hard || (seed >> 44) % 16 == 0 ? foundFalse : 0;
        for (uint256 i; i < many; ++i) {
            address who = aValidator((seed >> 16) % 5 + i);
            bytes memory data = abi.encodeCall(court.vote, (t.run, t.seat, t.number, foundFalse, foundHard, EVIDENCE));
            if ((seed >> (52 + i)) % 8 == 0) {
                data = abi.encodeCall(court.vote, (t.run, t.seat, t.number, all & ~foundFalse, 0, EVIDENCE));
            }
            if ((seed >> (60 + i)) % 16 == 0) {
                data = abi.encodeCall(court.abstain, (t.run, t.seat, t.number, "in doubt"));
            }
            verdict(who, t.run, t.seat, data);
        }
    }

    function again(uint256 seed) external {
        seed = stir(seed);
        (bool found, Trial memory t) = aTrial(seed, ICourt.Stage.Undecided);
        if (!found) return;
        bytes memory data = abi.encodeCall(court.challengeAgain, (t.run, t.seat, t.number, EVIDENCE));
        for (uint256 v; v < 5; ++v) {
            if (attempt(aValidator((seed >> 16) % 5 + v), address(court), data)) return;
        }
    }

    function settle(uint256 seed) external {
        seed = stir(seed);
        ICourt.Stage stage = seed % 2 == 0 ? ICourt.Stage.Open : ICourt.Stage.Appealed;
        if (seed % 5 == 0) stage = ICourt.Stage.Undecided;
        (bool found, Trial memory t) = aTrial(seed, stage);
        if (!found) return;
        if (seed % 3 == 0) vm.warp(max(block.timestamp, court.cases(t.run, t.seat, t.number).deadline));
        verdict(STRANGER, t.run, t.seat, abi.encodeCall(court.settle, (t.run, t.seat, t.number)));
    }

    function impeach(uint256 seed) external {
        seed = stir(seed);
        (bool found, Trial memory t) = aTrial(seed, ICourt.Stage.Upheld);
        if (!found || jobs.length == 0) return;
        uint256 v = (seed >> 16) % 5;
        for (uint256 i; i < jobs.length; ++i) {
            Job memory j = jobs[i];
            bytes32 id = court.submissionId(j.run, j.ref);
            if (j.run != t.run || court.charges(id, court.cases(t.run, t.seat, t.number).coSigner) != t.number) {
                continue;
            }
            ICourt.Receipt memory r =
                ICourt.Receipt(validators[v], 1, EVIDENCE, signVerdict(j.run, id, 1, 1, validatorKeys[v]));
            verdict(STRANGER, j.run, j.seat, abi.encodeCall(court.impeach, (j.run, j.ref, t.number, r)));
            return;
        }
    }

    function claim(uint256 seed) external {
        seed = stir(seed);
        Chair memory c = aChair(seed);
        uint256 reserved = runs.funds(c.run).reserved;
        if (!attempt(STRANGER, address(runs), abi.encodeCall(runs.claim, (c.run, c.seat)))) return;
        uint256 units = (reserved - runs.funds(c.run).reserved) / policies.policy(c.run).reward;
        claimed[c.run] += units;
        claimedBy[c.run][c.seat] += units;
    }

    function join(uint256 seed) external {
        seed = stir(seed);
        if (seed % 2 == 0 && chairs.length < 15) return take(aRun(seed >> 8), operators[(seed >> 16) % 3]);
        Chair memory c = aChair(seed >> 8);
        IRuns.Seat memory before = runs.seats(c.run, c.seat);
        address node = vm.addr(c.key);
        Consent memory consent =
            Consent(c.run, before.operator, node, peerOf(node), uint8(seed % 4), block.timestamp + 1);
        bytes memory data = abi.encodeCall(
            runs.join,
            (c.run, node, consent.peer, consent.hardware, consent.deadline, signConsent(consent, c.key), bytes(""))
        );
        if (!attempt(before.operator, address(runs), data)) return;
        lockedIn[c.run][c.seat] += runs.seats(c.run, c.seat).locked - before.locked;
    }

    function leave(uint256 seed) external {
        seed = stir(seed);
        Chair memory c = aChair(seed);
        address who = seed % 2 == 0 ? STRANGER : runs.seats(c.run, c.seat).operator;
        if (seed % 8 < 4) attempt(who, address(runs), abi.encodeCall(runs.leave, (c.run, c.seat)));
        else if (seed % 32 == 7) attempt(OWNER, address(runs), abi.encodeCall(runs.ban, (c.run, c.seat)));
    }

    function release(uint256 seed) external {
        seed = stir(seed);
        if (seed % 4 == 0) pass(2_000);
        for (uint256 i; i < chairs.length; ++i) {
            Chair memory c = chairs[i]; // it makes sense for few: all are tried
            uint256 locked = runs.seats(c.run, c.seat).locked;
            if (attempt(STRANGER, address(runs), abi.encodeCall(runs.release, (c.run, c.seat)))) {
                lockedIn[c.run][c.seat] -= locked;
            }
        }
    }

    function rotate(uint256 seed) external {
        seed = stir(seed);
        uint256 i = seed % chairs.length;
        Chair memory c = chairs[i];
        IRuns.Seat memory s = runs.seats(c.run, c.seat);
        if (seed % 2 == 0) {
            address node = vm.addr(++fresh);
            Consent memory consent = Consent(c.run, s.operator, node, peerOf(node), s.hardware, block.timestamp + 1);
            bytes memory data = abi.encodeCall(
                runs.rotate, (c.run, vm.addr(c.key), node, consent.peer, consent.deadline, signConsent(consent, fresh))
            );
            if (attempt(s.operator, address(runs), data)) chairs[i].key = fresh;
        } else {
            address to = operators[(seed >> 8) % 3];
            attempt(
                s.operator, address(runs), abi.encodeCall(runs.offer, (c.run, c.seat, to, uint40(block.timestamp + 1)))
            );
            attempt(to, address(runs), abi.encodeCall(runs.accept, (c.run, c.seat)));
        }
    }

    function staffing(uint256 seed) external {
        seed = stir(seed);
        uint256 run_ = aRun(seed);
        address v = aValidator(seed >> 8);
        uint256 what = (seed >> 16) % 7;
        if (what == 0) attempt(OWNER, address(bench), abi.encodeCall(bench.approve, (run_, v, seed % 5 != 0)));
        if (what == 1 && seed % 4 == 0) attempt(v, address(bench), abi.encodeCall(bench.enlist, (run_, false)));
        if (what == 2) attempt(v, address(bench), abi.encodeCall(bench.reinforce, (run_, uint96(seed % (5 * MUR)))));
        if (what < 3) return;
        for (uint256 i; i < 5; ++i) {
            v = validators[i]; // these make sense for few: all are tried
            if (what == 3) attempt(v, address(bench), abi.encodeCall(bench.enlist, (run_, true)));
            if (what > 4) attempt(STRANGER, address(bench), abi.encodeCall(bench.unseat, (run_, v)));
            if (what == 4) attempt(STRANGER, address(bench), abi.encodeCall(bench.release, (run_, v)));
        }
    }

    function stake(uint256 seed) external {
        seed = stir(seed);
        address who = people_[seed % people_.length];
        for (uint256 i; i < people_.length && (seed >> 160) % 4 > 1 && bonds.accounts(who).leaving == 0; ++i) {
            who = people_[(seed % people_.length + i) % people_.length];
        }
        IBonds.Account memory a = bonds.accounts(who);
        uint128 some = uint128(bound(seed >> 8, 1, 50 * MUR));
        uint256 what = (seed >> 160) % 4;
        if (what == 0) {
            bonds.deposit(who, some);
        } else if (what == 1) {
            some = uint128(bound(seed >> 8, 1, a.active + 1));
            if (attempt(who, address(bonds), abi.encodeCall(bonds.unbond, (some)))) {
                ripeAt[who] = block.timestamp + DELAY;
            }
        } else if (what == 2) {
            attempt(who, address(bonds), abi.encodeCall(bonds.rebond, (a.leaving == 0 ? some : a.leaving / 2 + 1)));
        } else {
            if ((seed >> 200) % 2 == 0) vm.warp(max(block.timestamp, bonds.accounts(who).readyAt));
            uint256 leaving = bonds.accounts(who).leaving;
            bool paid = attempt(who, address(bonds), abi.encodeCall(bonds.withdraw, ()));
            if (paid && block.timestamp < ripeAt[who]) early += leaving;
        }
    }

    function purse(uint256 seed) external {
        seed = stir(seed);
        uint256 run_ = aRun(seed);
        uint256 what = (seed >> 8) % 6;
        uint128 some = uint128(bound(seed >> 16, 1, 300 * MUR));
        if (what == 0) runs.fund(run_, some);
        if (what == 1) attempt(OWNER, address(runs), abi.encodeCall(runs.defund, (run_, some / 4)));
        if (what == 2) attempt(OWNER, address(runs), abi.encodeCall(runs.defund, (run_, seed % 3 == 0 ? 0 : some)));
        if (what == 1 && (seed >> 200) % 3 != 0) vm.warp(max(block.timestamp, runs.status(run_).defundedFrom));
        if (what < 4) attempt(OWNER, address(runs), abi.encodeCall(runs.collect, (run_)));
        if (what == 4) attempt(OWNER, address(runs), abi.encodeCall(runs.pause, (run_, seed % 8 == 0)));
        if (what == 5) attempt(OWNER, address(runs), abi.encodeCall(runs.pause, (run_, false)));
    }

    function pay(uint256 seed) external {
        seed = stir(seed);
        uint256 run_ = aRun(seed);
        if (seed % 5 == 0) return vouchers.fund(run_, bound(seed >> 8, 1, MUR));
        redeem(run_, aValidator(seed >> 8), bound(seed >> 16, 1, 30 * MUR));
    }

    // ---- for the exit -----------------------------------------------------------------------------------------------

    function redeem(uint256 run_, address to, uint256 total) public {
        bytes32 kind = keccak256("Voucher(uint256 run,address validator,uint256 total)");
        bytes memory signature = sign(keccak256(abi.encode(kind, run_, to, total)), TRAINER_KEY);
        attempt(to, address(vouchers), abi.encodeCall(vouchers.redeem, (run_, to, total, signature)));
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    function counts() external view returns (uint256 chairs_, uint256 jobs_, uint256 trials_, uint256 people) {
        return (chairs.length, jobs.length, trials.length, people_.length);
    }

    function job(uint256 i) external view returns (Job memory) {
        return jobs[i];
    }

    function person(uint256 i) external view returns (address) {
        return people_[i];
    }

    function validator(uint256 i) external view returns (address) {
        return validators[i];
    }

    // ---- choosing ---------------------------------------------------------------------------------------------------

    /// @dev The fuzzer likes small numbers and repeats itself; this makes every bit of a seed count.
    function stir(uint256 seed) internal returns (uint256) {
        return uint256(keccak256(abi.encode(seed, ++stirred)));
    }

    function aRun(uint256 seed) internal pure returns (uint256) {
        return 1 + seed % RUNS;
    }

    function aChair(uint256 seed) internal view returns (Chair memory) {
        return chairs[seed % chairs.length];
    }

    function aValidator(uint256 seed) internal view returns (address) {
        return validators[seed % 5];
    }

    /// @dev A submission whose window is open and whose seat still has something to lose.
    function aJob(uint256 seed) internal view returns (bool, Job memory j) {
        uint256 recent = jobs.length < 16 ? jobs.length : 16;
        for (uint256 i; i < recent; ++i) {
            j = jobs[jobs.length - 1 - (seed % recent + i) % recent];
            bool open_ = block.timestamp < j.time + policies.policy(j.run).window;
            if (open_ && !runs.seats(j.run, j.seat).swept) return (true, j);
        }
        return (false, j);
    }

    /// @dev A submission in an open soft case.
    function aDisputed(uint256 seed) internal view returns (bool, Job memory j) {
        for (uint256 i = jobs.length; i > 0; --i) {
            j = jobs[i - 1];
            ICourt.Case memory c = court.cases(j.run, j.seat, runs.submissions(court.submissionId(j.run, j.ref)).number);
            if (c.stage == ICourt.Stage.Open && !c.hard) return (true, j);
        }
        return aJob(seed);
    }

    function aTrial(uint256 seed, ICourt.Stage stage) internal view returns (bool, Trial memory t) {
        for (uint256 i; i < trials.length; ++i) {
            t = trials[(seed % trials.length + i) % trials.length];
            if (court.cases(t.run, t.seat, t.number).stage == stage) return (true, t);
        }
        return (false, t);
    }

    function next(Chair memory c) internal view returns (uint32 step, uint32 sequence) {
        IRuns.Seat memory s = runs.seats(c.run, c.seat);
        step = weights.published(c.run) - 1;
        sequence = s.step == step ? s.next : 0;
    }

    function max(uint256 a, uint256 b) internal pure returns (uint256) {
        return a > b ? a : b;
    }

    // ---- doing and noting -------------------------------------------------------------------------------------------

    function attempt(address who, address to, bytes memory data) internal returns (bool ok) {
        bytes memory answer;
        vm.prank(who);
        (ok, answer) = to.call(data);
        if (ok) {
            ++done[bytes4(data)];
        } else if (answer.length < 4 || !known[bytes4(answer)]) {
            assembly {
                revert(add(answer, 32), mload(answer))
            }
        }
    }

    /// @dev A call that may end a case of `seat`: what it revokes, what it takes, and that it leaves all others alone.
    function verdict(address who, uint256 run_, address seat_, bytes memory data) internal {
        uint256 reserved = runs.funds(run_).reserved;
        IRuns.Seat memory before = runs.seats(run_, seat_);
        uint256 others = otherLocks(run_, seat_);
        if (!attempt(who, address(court), data)) return;
        IRuns.Seat memory then_ = runs.seats(run_, seat_);
        IPolicies.Policy memory p = policies.policy(run_);
        revoked[run_] += (reserved - runs.funds(run_).reserved) / p.reward;
        uint256 taken = before.locked - then_.locked;
        lost[run_][seat_] += taken;
        if (otherLocks(run_, seat_) != others) ++stray;
        uint256 most = uint256(p.bond) + uint256(p.fee) * p.strikes;
        if (then_.swept && !before.swept) most = uint256(p.bond) + p.penalty;
        if (before.swept) most = p.bond;
        if (taken > most) ++excess;
        if (then_.cases > before.cases) {
            IRuns.SubmissionRef memory ref; // any key of the seat will do to appeal
            ref.node = then_.rotated ? then_.key : seat_;
            trials.push(Trial(run_, seat_, then_.cases, ref.node));
        }
    }

    function otherLocks(uint256 run_, address seat_) internal view returns (uint256 sum) {
        for (uint256 i; i < chairs.length; ++i) {
            if (chairs[i].run == run_ && chairs[i].seat == seat_) continue;
            sum += runs.seats(chairs[i].run, chairs[i].seat).locked;
        }
    }

    function publishIn(uint256 run_) internal {
        vm.roll(block.number + 1);
        vm.warp(block.timestamp + 2);
        uint32 step = weights.published(run_);
        bytes memory data = abi.encodeCall(weights.publish, (run_, step, manifestOf(step)));
        attempt(weights.trainer(run_), address(weights), data);
        vm.roll(block.number + 2);
    }

    function note(Chair memory c, IRuns.SubmissionRef memory ref, uint256 units) internal {
        jobs.push(Job(c.run, ref, c.seat, units, block.timestamp));
        submitted[c.run] += units;
    }

    function take(uint256 run_, address operator) internal {
        address node = vm.addr(++fresh);
        Consent memory c = Consent(run_, operator, node, peerOf(node), 1, block.timestamp + 1);
        bytes memory data =
            abi.encodeCall(runs.join, (run_, node, c.peer, 1, c.deadline, signConsent(c, fresh), bytes("")));
        if (!attempt(operator, address(runs), data)) return;
        chairs.push(Chair(run_, node, fresh));
        lockedIn[run_][node] += runs.seats(run_, node).locked;
    }
}
