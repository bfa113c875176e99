// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Bonds} from "../../src/Bonds.sol";
import {Runs} from "../../src/Runs.sol";
import {Token} from "../../src/Token.sol";
import {Test} from "./Test.sol";

/// @notice The public getters of Runs and Bonds, read as the structs they return piecemeal.
interface Records {
    function accounts(address account) external view returns (Bonds.Account memory);
    function funds(uint256 run) external view returns (Runs.Funds memory);
    function publications(uint256 run, uint32 step) external view returns (Runs.Publication memory);
    function seats(uint256 run, address node) external view returns (Runs.Seat memory);
    function works(bytes32 work) external view returns (Runs.Work memory);
    function cases(bytes32 work) external view returns (Runs.Case memory);
}

/// @title A funded run with three seated nodes, three enlisted validators and the first weights published
/// @notice `run` is the run that the short helpers act on.
abstract contract Base is Test {
    /// @notice What a node signs to take a seat.
    struct Consent {
        uint256 run;
        address operator;
        address node;
        bytes peer;
        uint8 hardware;
        uint256 deadline;
    }

    uint128 internal constant MUR = 1e18;
    uint256 internal constant SUPPLY = 1e9 * uint256(MUR);
    uint256 internal constant START = 1_800_000_000; // block time at which every test starts
    bytes32 internal constant SPEC = keccak256("spec");

    address internal constant OWNER = address(0x0A);
    address internal constant TRAINER = address(0x0B);
    address internal constant SINK = address(0x0C);
    address internal constant STRANGER = address(0x0D);

    // the policy of `run`
    uint64 internal constant DELAY = 7 days;
    uint32 internal constant WINDOW = 1 days;
    uint32 internal constant APPEAL = 12 hours;
    uint32 internal constant VOTE = 2 days;
    uint32 internal constant GRACE = 10 minutes;
    uint32 internal constant MAX_UNITS = 10_000;
    uint32 internal constant MAX_PER_STEP = 8;
    uint16 internal constant FINDER_BPS = 2_000;
    uint128 internal constant NODE_STAKE = 100 * MUR;
    uint128 internal constant VALIDATOR_STAKE = 300 * MUR;
    uint128 internal constant PENALTY = 60 * MUR;
    uint128 internal constant BOND = 10 * MUR;
    uint128 internal constant REWARD = MUR / 100;

    uint128 internal constant STAKE = 1_000 * MUR; // deposited for each operator and validator
    uint128 internal constant BUDGET = 1_000_000 * MUR; // of each run

    Token public token;
    Runs public runs;
    Bonds public bonds;
    uint256 internal run;
    address[3] internal operators;
    uint256[3] internal keys;
    address[3] internal nodes;
    address[3] internal validators;

    function setUp() public virtual {
        deploy(DELAY);
        switchTo(policy());
    }

    /// @dev The contracts, and stake for everyone; no run yet.
    function deploy(uint64 delay) internal {
        vm.warp(START);
        vm.roll(1_000);
        token = new Token(SUPPLY);
        runs = new Runs(token, delay, SINK);
        bonds = runs.bonds();
        token.approve(address(runs), type(uint256).max);
        token.approve(address(bonds), type(uint256).max);
        for (uint160 i; i < 3; ++i) {
            operators[i] = address(0x0100 + i);
            keys[i] = 0xA11CE + i;
            nodes[i] = vm.addr(keys[i]);
            validators[i] = address(0x0200 + i);
            bonds.deposit(operators[i], STAKE);
            bonds.deposit(validators[i], STAKE);
        }
    }

    // ---- runs -------------------------------------------------------------------------------------------------------

    /// @dev Field by field, because a literal of sixteen fields is too deep for the stack.
    function policy() internal pure returns (Runs.Policy memory p) {
        p.owner = OWNER;
        p.trainer = TRAINER;
        p.window = WINDOW;
        p.appeal = APPEAL;
        p.vote = VOTE;
        p.grace = GRACE;
        p.maxUnits = MAX_UNITS;
        p.maxPerStep = MAX_PER_STEP;
        p.finderBps = FINDER_BPS;
        p.quorum = 2;
        p.nodeStake = NODE_STAKE;
        p.validatorStake = VALIDATOR_STAKE;
        p.penalty = PENALTY;
        p.bond = BOND;
        p.reward = REWARD;
    }

    function instantPolicy() internal pure returns (Runs.Policy memory p) {
        p = policy();
        (p.appeal, p.vote, p.quorum) = (0, 0, 0);
    }

    /// @dev Creates and funds a run.
    function open(Runs.Policy memory p) internal returns (uint256 run_) {
        run_ = runs.create(p, SPEC);
        runs.fund(run_, BUDGET);
    }

    /// @dev Seats all nodes and validators.
    function people(uint256 run_) internal {
        for (uint256 i; i < 3; ++i) {
            seat(run_, i);
            approve(run_, validators[i], true);
            enlist(run_, validators[i], true);
        }
    }

    /// @dev Makes `run` a new run of this policy, with everyone seated and the first weights published.
    function switchTo(Runs.Policy memory p) internal {
        run = open(p);
        people(run);
        publish(run);
    }

    /// @dev Publishes the next version of the weights in a block of its own.
    function publish(uint256 run_) internal {
        vm.roll(block.number + 1);
        uint32 step = runs.published(run_);
        vm.prank(TRAINER);
        runs.publish(run_, step, manifestOf(step));
    }

    function manifestOf(uint32 step) internal pure returns (bytes32) {
        return keccak256(abi.encode("manifest", step));
    }

    function beaconOf(uint256 run_, uint32 step) internal view returns (bytes32) {
        return Records(address(runs)).publications(run_, step).beacon;
    }

    function fundsOf(uint256 run_) internal view returns (Runs.Funds memory) {
        return Records(address(runs)).funds(run_);
    }

    // ---- seats ------------------------------------------------------------------------------------------------------

    /// @dev The PeerID of a secp256k1 key: identity multihash, protobuf, 33 bytes of compressed key.
    function peerOf(address node) internal pure returns (bytes memory) {
        return abi.encodePacked(hex"00250802122102", keccak256(abi.encode(node)));
    }

    function consentOf(uint256 run_, uint256 i) internal view returns (Consent memory) {
        return Consent(run_, operators[i], nodes[i], peerOf(nodes[i]), 3, block.timestamp + 1 hours);
    }

    function signConsent(Consent memory c, uint256 key) internal view returns (bytes memory) {
        bytes32 kind =
            keccak256("Join(uint256 run,address operator,address node,bytes32 peer,uint8 hardware,uint256 deadline)");
        bytes32 peer = keccak256(c.peer);
        return sign(keccak256(abi.encode(kind, c.run, c.operator, c.node, peer, c.hardware, c.deadline)), key);
    }

    function invite(uint256 run_, address node, uint256 deadline) internal pure returns (bytes32) {
        return
            keccak256(abi.encode(keccak256("Invite(uint256 run,address node,uint256 deadline)"), run_, node, deadline));
    }

    function sign(bytes32 structHash, uint256 key) internal view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, typed(structHash));
        return abi.encodePacked(r, s, v);
    }

    /// @dev The EIP-712 digest, written out rather than taken from the contract under test.
    function typed(bytes32 structHash) internal view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Murmuration"),
                keccak256("1"),
                block.chainid,
                address(runs)
            )
        );
        return keccak256(abi.encodePacked(hex"1901", domain, structHash));
    }

    function join(Consent memory c, bytes memory nodeSig, bytes memory gateSig) internal {
        vm.prank(c.operator);
        runs.join(c.run, c.node, c.peer, c.hardware, c.deadline, nodeSig, gateSig);
    }

    function seat(uint256 run_, uint256 i) internal {
        Consent memory c = consentOf(run_, i);
        join(c, signConsent(c, keys[i]), "");
    }

    function leaveSeat(uint256 run_, uint256 i) internal {
        vm.prank(operators[i]);
        runs.leave(run_, nodes[i]);
    }

    function approve(uint256 run_, address validator, bool on) internal {
        vm.prank(OWNER);
        runs.approve(run_, validator, on);
    }

    function enlist(uint256 run_, address validator, bool on) internal {
        vm.prank(validator);
        runs.enlist(run_, on);
    }

    function seatOf(uint256 run_, address node) internal view returns (Runs.Seat memory) {
        return Records(address(runs)).seats(run_, node);
    }

    function accountOf(address account) internal view returns (Bonds.Account memory) {
        return Records(address(bonds)).accounts(account);
    }

    function assertRole(Runs.Role actual, Runs.Role expected) internal pure {
        assertEq(uint256(actual), uint256(expected));
    }

    // ---- work -------------------------------------------------------------------------------------------------------

    /// @dev The work that this node would commit next, on the newest weights.
    function nextRef(uint256 run_, address node) internal view returns (Runs.Ref memory ref) {
        Runs.Seat memory s = seatOf(run_, node);
        ref.node = node;
        ref.step = runs.published(run_) - 1;
        ref.sequence = s.step == ref.step ? s.next : 0;
        ref.root = keccak256(abi.encode(run_, node, ref.step, ref.sequence));
    }

    /// @dev Commits node `i` to its next work.
    function submit(uint256 i, uint32 units) internal returns (Runs.Ref memory ref) {
        ref = nextRef(run, nodes[i]);
        submit(ref, units, beaconOf(run, ref.step));
    }

    /// @dev Makes this very call and no other, so that a refusal may be expected of it.
    function submit(Runs.Ref memory ref, uint32 units, bytes32 beacon) internal {
        vm.prank(ref.node);
        runs.submit(run, ref.root, ref.step, ref.sequence, units, beacon);
    }

    function workOf(Runs.Ref memory ref) internal view returns (Runs.Work memory) {
        return Records(address(runs)).works(runs.workId(run, ref));
    }

    function assertState(Runs.Ref memory ref, Runs.State expected) internal view {
        assertEq(uint256(workOf(ref).state), uint256(expected));
    }

    // ---- verdicts and rewards ---------------------------------------------------------------------------------------

    function challenge(uint256 v, Runs.Ref memory ref, bool hard) internal {
        vm.prank(validators[v]);
        runs.challenge(run, ref, hard, keccak256("evidence"));
    }

    function appeal(uint256 i, Runs.Ref memory ref) internal {
        vm.prank(operators[i]);
        runs.appeal(run, ref);
    }

    function vote(uint256 v, Runs.Ref memory ref, bool uphold) internal {
        vm.prank(validators[v]);
        runs.vote(run, ref, uphold);
    }

    function caseOf(Runs.Ref memory ref) internal view returns (Runs.Case memory) {
        return Records(address(runs)).cases(runs.workId(run, ref));
    }

    /// @dev The whole jury agrees.
    function decide(Runs.Ref memory ref, bool uphold) internal {
        vote(1, ref, uphold);
        vote(2, ref, uphold);
    }

    /// @dev The operator does not appeal.
    function convictBySilence(Runs.Ref memory ref) internal {
        pass(APPEAL);
        runs.settle(run, ref);
    }

    function assertUnits(uint256 i, uint256 ready, uint256 pending) internal view {
        (uint256 actualReady, uint256 actualPending) = runs.claimable(run, nodes[i]);
        assertEq(actualReady, ready);
        assertEq(actualPending, pending);
    }

    function assertStake(address account, uint128 active, uint128 locked) internal view {
        assertEq(accountOf(account).active, active);
        assertEq(accountOf(account).locked, locked);
    }

    /// @dev Seconds after which everything added now has certainly matured: six epochs of a fifth of the window.
    function ripening(uint256 window) internal pure returns (uint256) {
        return 6 * ((window + 4) / 5);
    }

    function pass(uint256 time) internal {
        vm.warp(block.timestamp + time);
    }
}
