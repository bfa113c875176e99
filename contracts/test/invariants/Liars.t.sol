// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ICourt} from "../../src/interfaces/ICourt.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {Test} from "../support/Test.sol";
import {World} from "../support/World.sol";

/// @title A bench of five with one liar, a node that is honest, and one that cheats
/// @notice The liar (validator 4) challenges, votes, abstains, keeps silent and appeals as it likes, and the cheat appeals as it
/// likes. The honest do what running validators and nodes do, in time: they challenge what is false, appeal what is not, and vote
/// the truth on every case.
contract Liars is World {
    struct Job {
        IRuns.SubmissionRef ref;
        uint256 seat; // 0: the honest node's
        uint256 kind; // 0: good, 1: false, 2: cheating
        uint32 units;
        uint256 time;
    }

    Job[] internal jobs;
    mapping(uint256 seat => mapping(uint256 number => uint256[] jobs)) internal files; // what each case is about, in its order
    uint256 internal stirred;
    uint256 public honestUnits; // that the honest node submitted
    uint256 public honestPaid;
    uint256 public cheatPaid;
    uint256 public cleared; // cases the liar lost
    uint256 public upheld; // cases the cheat lost

    constructor() {
        deploy();
        switchTo(policy());
        for (uint256 v; v < 5; ++v) {
            vm.prank(validators[v]);
            bench.reinforce(run, STAKE - VALIDATOR_STAKE);
        }
    }

    function work(uint256 seed) external {
        seed = stir(seed);
        uint256 i = seed % 2;
        if (seed % 8 == 0) publish(run);
        IRuns.SubmissionRef memory ref = nextRef(run, nodes[i]);
        uint32 units = uint32(1 + (seed >> 8) % 900);
        bytes32 beacon = beaconOf(run, ref.step);
        bytes memory data = abi.encodeCall(runs.submit, (run, ref.root, ref.step, ref.sequence, units, beacon));
        if (!attempt(nodes[i], address(runs), data)) return;
        uint256 kind = i == 0 ? 0 : (seed >> 40) % 16 == 0 ? 2 : (seed >> 44) % 2;
        jobs.push(Job(ref, i, kind, units, block.timestamp));
        if (i == 0) honestUnits += units;
    }

    function lie(uint256 seed) external {
        seed = stir(seed);
        challengeBy(4, seed % 2, recent(seed % 2, 1 + (seed >> 8) % 5));
        if ((seed >> 16) % 2 == 0) honest();
    }

    function find(uint256 seed) external {
        seed = stir(seed);
        for (uint256 k = jobs.length; k > 0 && k + 20 > jobs.length; --k) {
            Job memory j = jobs[k - 1];
            uint256 v = seed % 4;
            if (j.kind == 1) {
                uint256[] memory list = new uint256[](1);
                list[0] = k - 1;
                challengeBy(v, 1, list);
            } else if (j.kind == 2) {
                ICourt.Receipt memory second = coSignature((v + 1) % 4, j.ref);
                bytes memory data = abi.encodeCall(court.accuse, (run, j.ref, 1, EVIDENCE, second));
                if (attempt(validators[v], address(court), data)) {
                    files[1][runs.seats(run, nodes[1]).cases].push(k - 1);
                }
            }
        }
    }

    function appealCheat(uint256 seed) external {
        seed = stir(seed);
        address who = seed % 3 == 0 ? nodes[1] : seed % 3 == 1 ? operators[1] : validators[4];
        uint256 number = 1 + (seed >> 8) % (1 + runs.seats(run, nodes[1]).cases);
        attempt(who, address(court), abi.encodeCall(court.appeal, (run, nodes[1], number)));
        liarVotes(seed >> 16);
    }

    function liarVotes(uint256 seed) public {
        seed = stir(seed);
        uint256 i = seed % 2;
        uint256 cases = runs.seats(run, nodes[i]).cases;
        for (uint256 n = cases; n > 0 && n + 4 > cases; --n) {
            uint256 all = (1 << court.cases(run, nodes[i], n).submissions) - 1;
            uint256 f = (seed >> 16) & all;
            bytes memory data = abi.encodeCall(court.vote, (run, nodes[i], n, f, f & (seed >> 32), EVIDENCE));
            if (seed % 7 == 0) data = abi.encodeCall(court.abstain, (run, nodes[i], n, "no"));
            attempt(validators[4], address(court), data);
        }
    }

    function again(uint256 seed) external {
        seed = stir(seed);
        uint256 cases = runs.seats(run, nodes[0]).cases;
        if (cases == 0) return;
        bytes memory data = abi.encodeCall(court.challengeAgain, (run, nodes[0], 1 + seed % cases, EVIDENCE));
        attempt(validators[4], address(court), data);
    }

    function tick(uint256 seed) external {
        seed = stir(seed);
        honest();
        pass(1 + seed % 6 hours); // less than any deadline
        honest();
        uint256 reserved = runs.funds(run).reserved;
        runs.claim(run, nodes[0]);
        honestPaid += (reserved - runs.funds(run).reserved) / REWARD;
        reserved = runs.funds(run).reserved;
        runs.claim(run, nodes[1]);
        cheatPaid += (reserved - runs.funds(run).reserved) / REWARD;
    }

    /// @dev What the honest do whenever they look.
    function honest() internal {
        for (uint256 i; i < 2; ++i) {
            uint256 cases = runs.seats(run, nodes[i]).cases;
            for (uint256 n = cases; n > 0; --n) {
                ICourt.Case memory c = court.cases(run, nodes[i], n);
                if (c.stage == ICourt.Stage.Open && i == 0) {
                    vm.prank(nodes[0]);
                    court.appeal(run, nodes[0], n);
                }
                if (court.cases(run, nodes[i], n).stage == ICourt.Stage.Appealed) judge(i, n);
                c = court.cases(run, nodes[i], n);
                bool waits = c.stage == ICourt.Stage.Open || c.stage == ICourt.Stage.Appealed
                    || c.stage == ICourt.Stage.Undecided;
                if (waits && block.timestamp >= c.deadline) court.settle(run, nodes[i], n);
                c = court.cases(run, nodes[i], n);
                if (c.stage == ICourt.Stage.Cleared) ++cleared;
                if (c.stage == ICourt.Stage.Upheld) ++upheld;
            }
        }
    }

    function judge(uint256 i, uint256 n) internal {
        (uint256 f, uint256 h) = (0, 0);
        uint256[] storage file = files[i][n];
        for (uint256 k; k < file.length; ++k) {
            uint256 kind = jobs[file[k]].kind;
            if (kind != 0) f |= 1 << k;
            if (kind == 2) h |= 1 << k;
        }
        for (uint256 v; v < 4; ++v) {
            if (court.isJuror(run, nodes[i], n, validators[v])) ballot(v, i, n, f, h);
        }
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// @return paid The most that the cheat may have been paid: what is good, or nobody convicted in time.
    function payable_() external view returns (uint256 paid) {
        for (uint256 k; k < jobs.length; ++k) {
            Job storage j = jobs[k];
            if (j.seat == 1 && court.stateOf(run, j.ref) != ICourt.State.Revoked) paid += j.units;
        }
    }

    function revokedOf(uint256 i) external view returns (uint256 many) {
        for (uint256 k; k < jobs.length; ++k) {
            if (jobs[k].seat == i && court.stateOf(run, jobs[k].ref) == ICourt.State.Revoked) ++many;
        }
    }

    function stakeOf(address who) external view returns (uint256) {
        return bonds.accounts(who).active;
    }

    function validator(uint256 v) external view returns (address) {
        return validators[v];
    }

    function honestOperator() external view returns (address) {
        return operators[0];
    }

    function honestSeat() external view returns (IRuns.Seat memory) {
        return runs.seats(run, nodes[0]);
    }

    function honestPending() external view returns (uint256) {
        (uint256 ready, uint256 pending) = runs.claimable(run, nodes[0]);
        return ready + pending;
    }

    function cheatReady() external view returns (uint256 ready) {
        (ready,) = runs.claimable(run, nodes[1]);
    }

    function challengeBy(uint256 v, uint256 i, uint256[] memory list) internal {
        IRuns.SubmissionRef[] memory refs = new IRuns.SubmissionRef[](list.length);
        for (uint256 k; k < list.length; ++k) {
            refs[k] = jobs[list[k]].ref;
        }
        bytes memory data = abi.encodeCall(court.challenge, (run, refs, EVIDENCE));
        if (list.length == 0 || !attempt(validators[v], address(court), data)) return;
        uint256 number = runs.seats(run, nodes[i]).cases;
        for (uint256 k; k < list.length; ++k) {
            IRuns.Submission memory w = runs.submissions(court.submissionId(run, refs[k]));
            if (w.number == number) files[i][number].push(list[k]); // the others were left out
        }
    }

    function recent(uint256 i, uint256 most) internal view returns (uint256[] memory list) {
        list = new uint256[](most);
        uint256 many;
        for (uint256 k = jobs.length; k > 0 && many < most; --k) {
            if (jobs[k - 1].seat == i) list[many++] = k - 1;
        }
        assembly {
            mstore(list, many)
        }
    }

    function stir(uint256 seed) internal returns (uint256) {
        return uint256(keccak256(abi.encode(seed, ++stirred)));
    }

    /// @dev What the contracts refuse is refused; a panic fails the campaign.
    function attempt(address who, address to, bytes memory data) internal returns (bool ok) {
        bytes memory answer;
        vm.prank(who);
        (ok, answer) = to.call(data);
        if (!ok) assertTrue(answer.length >= 4 && bytes4(answer) != bytes4(0x4e487b71), "a panic");
    }
}

/// @title With one liar on a bench of five nobody honest loses, and nothing that a jury found false is paid
contract LiarsTest is Test {
    Liars internal liars;
    bytes4[] internal _actions;

    function setUp() public {
        liars = new Liars();
        _actions = [
            Liars.work.selector,
            Liars.lie.selector,
            Liars.find.selector,
            Liars.appealCheat.selector,
            Liars.liarVotes.selector,
            Liars.again.selector,
            Liars.tick.selector
        ];
        targetContract(address(liars));
        targetSelector(FuzzSelector(address(liars), _actions));
    }

    function invariant_nobody_honest_loses() public view {
        uint256 stake = 300e18;
        assertGe(liars.stakeOf(liars.honestOperator()), stake);
        for (uint256 v; v < 4; ++v) {
            assertGe(liars.stakeOf(liars.validator(v)), stake);
        }
        IRuns.Seat memory s = liars.honestSeat();
        assertEq(s.strikes, 0);
        assertFalse(s.swept);
        assertEq(liars.honestPaid() + liars.honestPending(), liars.honestUnits(), "honest work was revoked");
        assertEq(liars.revokedOf(0), 0);
    }

    function invariant_nothing_upheld_is_paid() public view {
        assertLe(liars.cheatPaid() + liars.cheatReady(), liars.payable_());
    }

    /// @dev The campaign is no idle one: the liar loses cases, and so does the cheat.
    function test_liars_and_cheats_lose_cases() public {
        for (uint256 i; i < 300; ++i) {
            uint256 seed = uint256(keccak256(abi.encode(i)));
            (bool ok, bytes memory answer) =
                address(liars).call(abi.encodeWithSelector(_actions[seed % _actions.length], seed >> 8));
            if (ok) continue;
            assembly {
                revert(add(answer, 32), mload(answer))
            }
        }
        assertGt(liars.cleared(), 0, "cleared");
        assertGt(liars.upheld(), 0, "upheld");
        assertGt(liars.revokedOf(1), 0, "revoked");
        assertGt(liars.honestPaid(), 0, "paid");
        invariant_nobody_honest_loses();
        invariant_nothing_upheld_is_paid();
    }
}
