// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Bonds} from "../../src/Bonds.sol";
import {Runs} from "../../src/Runs.sol";
import {Base, Records} from "./Base.sol";

/// @title Random actors, in random order, at random times, in two runs that share their operators and validators
/// @notice One run has appeals, the other instant verdicts and a window that does not divide by five. Every action looks
/// at the state first and does only what is legal then, so nothing here may revert; where it finds nothing to do it does
/// nothing. Only `exit` also tries what is forbidden, and keeps score. What happened is remembered independently of the
/// contracts, for the invariants to compare. All times are short, so that cases and stake come to their end in a campaign.
contract Handler is Base {
    /// @notice A work ever submitted.
    struct Entry {
        uint256 run;
        Runs.Ref ref;
    }

    uint256 internal constant CREW = 6; // nodes, two of each operator: convictions use them up
    uint64 internal constant HANDLER_DELAY = 55 hours; // one hour more than window, appeal and vote

    uint256[2] internal runIds;
    uint256[CREW] internal crewKeys;
    address[CREW] internal crew;
    Entry[] internal entries;

    // ghosts
    mapping(uint256 run => uint256) public paidIn; // funded less defunded
    mapping(uint256 run => uint256) public paidOut; // rewards
    mapping(uint256 run => mapping(address node => uint256)) public claimedUnits;
    mapping(address account => uint256) public exitFrom; // earliest time at which leaving stake may be withdrawn
    mapping(address account => bool) public bitten; // a slash has reached the locked part of the stake
    uint256 public earlyExits;

    constructor() {
        deploy(HANDLER_DELAY);
        Runs.Policy memory p = policy();
        (p.appeal, p.vote) = (6 hours, 1 days);
        runIds[0] = open(p);
        p = instantPolicy();
        p.window = 32_401;
        p.reward = 7 * MUR / 1_000;
        p.penalty = 90 * MUR;
        runIds[1] = open(p);
        for (uint256 i; i < CREW; ++i) {
            crewKeys[i] = 0xC0DE + i;
            crew[i] = vm.addr(crewKeys[i]);
        }
        for (uint256 r; r < 2; ++r) {
            paidIn[runIds[r]] = BUDGET;
            for (uint256 i; i < CREW; ++i) {
                _seat(runIds[r], i);
            }
            for (uint256 i; i < 3; ++i) {
                approve(runIds[r], validators[i], true);
                enlist(runIds[r], validators[i], true);
            }
            publish(runIds[r]);
        }
        for (uint256 a; a < 3; ++a) {
            _unbond(operators[a], STAKE / 2); // so that slashes bite
        }
    }

    /// @notice The functions a campaign may call, each as often as it is to weigh.
    function actions() external view returns (bytes4[] memory list) {
        bytes4[14] memory kinds = [
            this.wait.selector,
            this.work.selector,
            this.workMany.selector,
            this.skip.selector,
            this.accuse.selector,
            this.defend.selector,
            this.judge.selector,
            this.close.selector,
            this.collect.selector,
            this.stepBack.selector,
            this.exit.selector,
            this.invest.selector,
            this.comeOrGo.selector,
            this.govern.selector
        ];
        uint8[14] memory weights = [6, 4, 3, 1, 6, 4, 4, 3, 3, 1, 2, 1, 2, 1];
        uint256 sum;
        for (uint256 k; k < kinds.length; ++k) {
            sum += weights[k];
        }
        list = new bytes4[](sum);
        for (uint256 k; k < kinds.length; ++k) {
            for (uint256 i; i < weights[k]; ++i) {
                list[--sum] = kinds[k];
            }
        }
    }

    // ---- actions: time and weights ----------------------------------------------------------------------------------

    function wait(uint256 time, bool next) external {
        pass(bound(time, 1, 12 hours));
        vm.roll(block.number + 1);
        if (next) publish(_run(time));
    }

    // ---- actions: work ----------------------------------------------------------------------------------------------

    function work(uint256 r, uint256 i, uint256 units) external {
        (uint256 run_, Runs.Ref memory ref) = _assignment(r, i, 1);
        if (run_ == 0) return;
        bytes32 beacon = beaconOf(run_, ref.step);
        vm.prank(ref.node);
        runs.submit(run_, ref.root, ref.step, ref.sequence, uint32(bound(units, 1, MAX_UNITS)), beacon);
        entries.push(Entry(run_, ref));
    }

    function workMany(uint256 r, uint256 i, uint256 n, uint256 units) external {
        n = bound(n, 1, 3);
        (uint256 run_, Runs.Ref memory ref) = _assignment(r, i, n);
        if (run_ == 0) return;
        Runs.Item[] memory items = new Runs.Item[](n);
        for (uint32 k; k < n; ++k) {
            items[k] = Runs.Item(keccak256(abi.encode(ref.root, k)), uint32(bound(units, 1, MAX_UNITS)));
            entries.push(Entry(run_, Runs.Ref(ref.node, ref.step, ref.sequence + k, items[k].root)));
        }
        bytes32 beacon = beaconOf(run_, ref.step);
        vm.prank(ref.node);
        runs.submitMany(run_, ref.step, ref.sequence, beacon, items);
    }

    function skip(uint256 r, uint256 i) external {
        (uint256 run_, Runs.Ref memory ref) = _assignment(r, i, 1);
        if (run_ == 0) return;
        bytes32 beacon = beaconOf(run_, ref.step);
        vm.prank(ref.node);
        runs.skip(run_, ref.step, ref.sequence, beacon);
    }

    /// @dev Where node `i` may make `n` submissions now: the run, and the first of them. Run 0 means nowhere.
    function _assignment(uint256 r, uint256 i, uint256 n) private view returns (uint256 run_, Runs.Ref memory ref) {
        run_ = _run(r);
        address node = crew[i % CREW];
        Runs.Seat memory s = seatOf(run_, node);
        ref = nextRef(run_, node);
        if (
            s.role != Runs.Role.Active || s.openHard != 0 || runs.paused(run_)
                || s.since >= Records(address(runs)).publications(run_, ref.step).blockNumber
                || ref.sequence + n > MAX_PER_STEP
                || fundsOf(run_).free < n * MAX_UNITS * uint256(runs.policy(run_).reward)
        ) run_ = 0;
    }

    // ---- actions: verdicts ------------------------------------------------------------------------------------------

    function accuse(uint256 k, uint256 v, bool hard) external {
        (bool found, Entry memory e) = _find(k, _isChallengeable);
        if (!found) return;
        address validator = validators[v % 3];
        if (runs.validators(e.run, validator) != Runs.Role.Active) return;
        if (_bond(e.run) > _available(validator)) return;
        if (_bond(e.run) == 0) hard = hard && k % 5 == 0; // an instant conviction ends a seat: it had better be rare
        if (!hard && seatOf(e.run, e.ref.node).swept) return;
        vm.prank(validator);
        runs.challenge(e.run, e.ref, hard, bytes32(k));
        _noteBites();
    }

    function defend(uint256 k) external {
        (bool found, Entry memory e) = _find(k, _isAppealable);
        if (!found) return;
        address operator = seatOf(e.run, e.ref.node).operator;
        if (_bond(e.run) > _available(operator)) return;
        vm.prank(operator);
        runs.appeal(e.run, e.ref);
    }

    /// @notice All who may vote on a case do, each by its own bit of `ballots`.
    function judge(uint256 k, uint256 ballots) external {
        (bool found, Entry memory e) = _find(k, _isOnTrial);
        if (!found) return;
        for (uint256 v; v < 3 && _isOnTrial(e); ++v) {
            address validator = validators[v];
            if (runs.validators(e.run, validator) != Runs.Role.Active) continue;
            if (validator == _case(e).challenger || runs.voted(runs.workId(e.run, e.ref), validator)) continue;
            vm.prank(validator);
            runs.vote(e.run, e.ref, ballots >> v & 1 == 1);
        }
        _noteBites();
    }

    function close(uint256 k) external {
        (bool found, Entry memory e) = _find(k, _isOverdue);
        if (!found) return;
        runs.settle(e.run, e.ref);
        _noteBites();
    }

    /// @dev The first work from the k-th on, around the whole list, of which `is_` holds.
    function _find(uint256 k, function(Entry memory) internal view returns (bool) is_)
        private
        view
        returns (bool, Entry memory e)
    {
        for (uint256 i; i < entries.length; ++i) {
            e = entries[(k % entries.length + i) % entries.length];
            if (is_(e)) return (true, e);
        }
        return (false, e);
    }

    function _isChallengeable(Entry memory e) private view returns (bool) {
        Runs.Work memory w = _work(e);
        return w.state == Runs.State.Submitted && block.timestamp < uint256(w.time) + runs.policy(e.run).window;
    }

    function _isAppealable(Entry memory e) private view returns (bool) {
        return _work(e).state == Runs.State.Challenged && block.timestamp < _case(e).deadline;
    }

    function _isOnTrial(Entry memory e) private view returns (bool) {
        return _work(e).state == Runs.State.Appealed && block.timestamp < _case(e).deadline;
    }

    function _isOverdue(Entry memory e) private view returns (bool) {
        return _isOpen(e) && block.timestamp >= _case(e).deadline;
    }

    function _isOpen(Entry memory e) private view returns (bool) {
        Runs.State state = _work(e).state;
        return state == Runs.State.Challenged || state == Runs.State.Appealed;
    }

    // ---- actions: money ---------------------------------------------------------------------------------------------

    /// @notice One operator claims for all its seats.
    function collect(uint256 i) public {
        for (uint256 r; r < 2; ++r) {
            _claim(runIds[r], crew[i % 3]);
            _claim(runIds[r], crew[i % 3 + 3]);
        }
    }

    function _claim(uint256 run_, address node) private {
        uint256 amount = runs.claim(run_, node);
        paidOut[run_] += amount;
        claimedUnits[run_][node] += amount / runs.policy(run_).reward;
    }

    /// @notice Moves stake towards the door, all of it or a part, or back.
    function stepBack(uint256 a, uint256 amount, uint256 kind) external {
        address account = _account(a);
        if (kind % 3 == 0) {
            _unbond(account, _available(account));
        } else if (kind % 3 == 1) {
            _unbond(account, uint128(bound(amount, 0, _available(account))));
        } else {
            amount = bound(amount, 0, accountOf(account).leaving);
            vm.prank(account);
            bonds.rebond(uint128(amount));
        }
    }

    function _unbond(address account, uint128 amount) private {
        vm.prank(account);
        bonds.unbond(amount);
        exitFrom[account] = block.timestamp + HANDLER_DELAY;
    }

    /// @notice Everybody tries the door. To those who come too early it must be shut.
    function exit() public {
        for (uint256 a; a < 6; ++a) {
            vm.prank(_account(a));
            if (block.timestamp >= exitFrom[_account(a)]) {
                bonds.withdraw();
                continue;
            }
            try bonds.withdraw() {
                ++earlyExits;
            } catch {}
        }
    }

    function invest(uint256 a, uint256 r, uint256 amount, bool stake) external {
        amount = bound(amount, 0, 300 * MUR);
        if (stake) {
            bonds.deposit(_account(a), uint128(amount));
        } else {
            runs.fund(_run(r), uint128(amount));
            paidIn[_run(r)] += amount;
        }
    }

    // ---- actions: seats and owners ----------------------------------------------------------------------------------

    function comeOrGo(uint256 r, uint256 i, bool node) external {
        uint256 run_ = _run(r);
        node ? _comeOrGoNode(run_, i % CREW) : _comeOrGoValidator(run_, validators[i % 3]);
    }

    function _comeOrGoNode(uint256 run_, uint256 i) private {
        Runs.Role role = seatOf(run_, crew[i]).role;
        if (role == Runs.Role.Active) {
            vm.prank(_operatorOf(i));
            runs.leave(run_, crew[i]);
            _unbond(_operatorOf(i), _available(_operatorOf(i))); // flight is the case that matters
        } else if (role != Runs.Role.Banned && _available(_operatorOf(i)) >= NODE_STAKE) {
            _seat(run_, i);
        }
    }

    function _comeOrGoValidator(uint256 run_, address validator) private {
        Runs.Role role = runs.validators(run_, validator);
        if (role == Runs.Role.Active) {
            enlist(run_, validator, false);
        } else if (role == Runs.Role.Left && _available(validator) >= VALIDATOR_STAKE) {
            enlist(run_, validator, true);
        }
    }

    function govern(uint256 r, uint256 i, uint256 kind, bool on) external {
        uint256 run_ = _run(r);
        vm.startPrank(OWNER);
        if (kind % 8 == 0) {
            runs.ban(run_, crew[i % CREW]);
        } else if (kind % 8 < 3) {
            runs.pause(run_, on);
        } else if (kind % 8 < 6) {
            runs.approve(run_, validators[i % 3], on);
        } else {
            uint128 amount = uint128(bound(i, 0, fundsOf(run_).free / 2));
            runs.defund(run_, amount);
            paidIn[run_] -= amount;
        }
        vm.stopPrank();
    }

    function _seat(uint256 run_, uint256 i) private {
        Consent memory c = Consent(run_, _operatorOf(i), crew[i], peerOf(crew[i]), 3, block.timestamp);
        join(c, signConsent(c, crewKeys[i]), "");
    }

    // ---- everybody goes home ----------------------------------------------------------------------------------------

    /// @notice From whatever state: closes all cases, waits, pays everybody everything. Nothing of it may revert.
    function windUp() external {
        pass(2 days); // past all deadlines
        for (uint256 k; k < entries.length; ++k) {
            if (_isOpen(entries[k])) runs.settle(entries[k].run, entries[k].ref);
        }
        pass(ripening(WINDOW));
        for (uint256 i; i < 3; ++i) {
            collect(i);
        }
        for (uint256 r; r < 2; ++r) {
            for (uint256 i; i < CREW; ++i) {
                if (seatOf(runIds[r], crew[i]).role == Runs.Role.Active) _comeOrGoNode(runIds[r], i);
            }
            for (uint256 i; i < 3; ++i) {
                approve(runIds[r], validators[i], false);
            }
            uint128 free = fundsOf(runIds[r]).free;
            vm.prank(OWNER);
            runs.defund(runIds[r], free);
        }
        for (uint256 a; a < 6; ++a) {
            _unbond(_account(a), accountOf(_account(a)).active);
        }
        pass(HANDLER_DELAY);
        exit();
    }

    // ---- what the invariants ask ------------------------------------------------------------------------------------

    function runAt(uint256 r) external view returns (uint256) {
        return runIds[r];
    }

    function nodeAt(uint256 i) external view returns (address) {
        return crew[i];
    }

    /// @notice The three operators and the three validators: all who ever had stake.
    function accountAt(uint256 a) external view returns (address, Bonds.Account memory) {
        return (_account(a), accountOf(_account(a)));
    }

    /// @notice All units of a run that may yet be paid.
    function owedUnits(uint256 run_) external view returns (uint256 units) {
        for (uint256 i; i < CREW; ++i) {
            (uint256 ready, uint256 pending) = runs.claimable(run_, crew[i]);
            units += ready + pending;
        }
        for (uint256 k; k < entries.length; ++k) {
            Entry memory e = entries[k];
            if (e.run == run_ && _isOpen(e) && !_case(e).hard) units += _work(e).units; // in escrow
        }
    }

    /// @notice The most that a node can rightly have been paid: units past their window that no verdict holds or took.
    /// @dev Acquitted soft work counts from its acquittal, which is when the contract pays it.
    function earnedUnits(uint256 run_, address node) external view returns (uint256 units) {
        uint32 window = runs.policy(run_).window;
        for (uint256 k; k < entries.length; ++k) {
            Entry memory e = entries[k];
            if (e.run != run_ || e.ref.node != node) continue;
            Runs.Work memory w = _work(e);
            bool old = block.timestamp >= uint256(w.time) + window;
            bool acquitted = w.state == Runs.State.Cleared && !_case(e).hard;
            if ((old && w.state == Runs.State.Submitted) || (old && w.state == Runs.State.Cleared) || acquitted) {
                units += w.units;
            }
        }
    }

    function openHardCases(uint256 run_, address node) external view returns (uint256 n) {
        for (uint256 k; k < entries.length; ++k) {
            Entry memory e = entries[k];
            if (e.run == run_ && e.ref.node == node && _isOpen(e) && _case(e).hard) ++n;
        }
    }

    /// @notice What seats and open cases have locked of this account's stake, if no slash has bitten into it.
    function locksOf(address account) public view returns (uint256 amount) {
        for (uint256 r; r < 2; ++r) {
            for (uint256 i; i < CREW; ++i) {
                Runs.Seat memory s = seatOf(runIds[r], crew[i]);
                if (s.operator == account && s.role == Runs.Role.Active) amount += NODE_STAKE;
            }
            if (runs.validators(runIds[r], account) == Runs.Role.Active) amount += VALIDATOR_STAKE;
        }
        for (uint256 k; k < entries.length; ++k) {
            Entry memory e = entries[k];
            if (!_isOpen(e)) continue;
            if (_case(e).challenger == account) amount += _bond(e.run);
            bool appealed = _work(e).state == Runs.State.Appealed;
            if (appealed && seatOf(e.run, e.ref.node).operator == account) amount += _bond(e.run);
        }
    }

    // ---- small reads ------------------------------------------------------------------------------------------------

    /// @dev The run with appeals three times out of four, because there is more to happen in it.
    function _run(uint256 r) private view returns (uint256) {
        return runIds[r % 4 == 0 ? 1 : 0];
    }

    function _operatorOf(uint256 i) private view returns (address) {
        return operators[i % 3];
    }

    function _account(uint256 a) private view returns (address) {
        return a % 6 < 3 ? operators[a % 3] : validators[a % 3];
    }

    function _available(address account) private view returns (uint128) {
        Bonds.Account memory a = accountOf(account);
        return a.active - a.locked;
    }

    /// @dev What a case of this run locks of each side.
    function _bond(uint256 run_) private view returns (uint128) {
        Runs.Policy memory p = runs.policy(run_);
        return p.appeal == 0 ? 0 : p.bond;
    }

    function _work(Entry memory e) private view returns (Runs.Work memory) {
        return Records(address(runs)).works(runs.workId(e.run, e.ref));
    }

    function _case(Entry memory e) private view returns (Runs.Case memory) {
        return Records(address(runs)).cases(runs.workId(e.run, e.ref));
    }

    /// @dev A slash that reaches locked stake takes from the lock and leaves nothing that is not locked.
    function _noteBites() private {
        for (uint256 a; a < 6; ++a) {
            Bonds.Account memory account = accountOf(_account(a));
            bool all = account.locked == account.active;
            if (all && account.locked < locksOf(_account(a))) bitten[_account(a)] = true;
        }
    }
}
