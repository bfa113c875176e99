// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../../src/interfaces/IPolicies.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IBench} from "../../src/interfaces/IBench.sol";
import {IBonds} from "../../src/interfaces/IBonds.sol";
import {ICourt} from "../../src/interfaces/ICourt.sol";
import {ILocations} from "../../src/interfaces/ILocations.sol";
import {IRuns} from "../../src/interfaces/IRuns.sol";
import {IVouchers} from "../../src/interfaces/IVouchers.sol";
import {IWeights} from "../../src/interfaces/IWeights.sol";
import {Test} from "./Test.sol";

/// @notice What Court has beside ICourt.
interface IHasLocations {
    function locations() external view returns (ILocations);
}

/// @title The contracts, a funded run with three seated nodes and five validators, and the first weights published
/// @notice `run` is the run that the short helpers act on.
abstract contract World is Test {
    /// @notice What a node signs to take a seat.
    struct Consent {
        uint256 run;
        address operator;
        address node;
        bytes peer;
        uint8 hardware;
        uint256 deadline;
    }

    uint96 internal constant MUR = 1e18;
    uint256 internal constant SUPPLY = 1e9 * uint256(MUR);
    uint256 internal constant START = 1_800_000_000; // block time at which every test starts
    bytes32 internal constant SPEC = keccak256("spec");
    uint40 internal constant NEVER = type(uint40).max; // a deadline
    bytes32 internal constant EVIDENCE = keccak256("evidence");

    address internal constant OWNER = address(0x0A);
    address internal constant TRAINER = address(0x0B);
    address internal constant SINK = address(0x0C);
    address internal constant STRANGER = address(0x0D);

    // the policy of `run`
    uint64 internal constant DELAY = 7 days;
    uint32 internal constant WINDOW = 1 days;
    uint32 internal constant APPEAL = 12 hours;
    uint32 internal constant VOTE = 2 days;
    uint32 internal constant SPAN = WINDOW + 3 * APPEAL + 2 * VOTE;
    uint32 internal constant GRACE = 10 minutes;
    uint32 internal constant NOTICE = 1 hours;
    uint32 internal constant MAX_UNITS = 10_000;
    uint16 internal constant MAX_PER_STEP = 300;
    uint16 internal constant FINDER_BPS = 2_000;
    uint8 internal constant LEVERAGE = 5;
    uint8 internal constant STRIKES = 4;
    uint96 internal constant NODE_STAKE = 100 * MUR;
    uint96 internal constant VALIDATOR_STAKE = 60 * MUR;
    uint96 internal constant PENALTY = 60 * MUR;
    uint96 internal constant BOND = 20 * MUR;
    uint96 internal constant JURY_FEE = MUR;
    uint16 internal constant BOND_BPS = 2_000;
    uint96 internal constant VOUCHER_CAP = 1_000 * MUR;
    uint96 internal constant FEE = MUR;
    uint96 internal constant REWARD = MUR / 100;

    uint96 internal constant STAKE = 300 * MUR; // deposited for each operator and validator
    uint128 internal constant BUDGET = 1_000_000 * MUR; // of each run

    IERC20 public token;
    IRuns public runs;
    IBonds public bonds;
    ICourt public court;
    IBench public bench;
    IPolicies public policies;
    IWeights public weights;
    IVouchers public vouchers;
    ILocations public locations;
    uint256 internal run;
    address[3] internal operators;
    uint256[3] internal keys;
    address[3] internal nodes;
    uint256[5] internal validatorKeys;
    address[5] internal validators;

    function setUp() public virtual {
        deploy();
        switchTo(policy());
    }

    // ---- deployment -------------------------------------------------------------------------------------------------

    /// @dev The contracts, and stake for everyone; no run yet.
    function deploy() internal {
        vm.warp(START);
        vm.roll(1_000);
        token = IERC20(create("Token", abi.encode(SUPPLY)));
        deployOver(token);
        for (uint256 i; i < 3; ++i) {
            operators[i] = address(uint160(0x0100 + i));
            keys[i] = 0xA11CE + i;
            nodes[i] = vm.addr(keys[i]);
            bonds.deposit(operators[i], STAKE);
        }
        for (uint256 i; i < 5; ++i) {
            validatorKeys[i] = 0xB0B + i;
            validators[i] = vm.addr(validatorKeys[i]);
            bonds.deposit(validators[i], STAKE);
        }
    }

    /// @dev Runs (which brings Bonds), then Court at the address Runs was told, then Vouchers.
    function deployOver(IERC20 token_) internal {
        address next = vm.computeCreateAddress(address(this), vm.getNonce(address(this)) + 1);
        runs = IRuns(create("Runs", abi.encode(token_, DELAY, SINK, next)));
        court = ICourt(create("Court", abi.encode(runs)));
        vouchers = IVouchers(create("Vouchers", abi.encode(runs)));
        (bonds, weights, bench, policies) = (runs.bonds(), runs.weights(), runs.bench(), court.policies());
        locations = IHasLocations(address(court)).locations();
        token_.approve(address(runs), type(uint256).max);
        token_.approve(address(bonds), type(uint256).max);
        token_.approve(address(vouchers), type(uint256).max);
    }

    /// @dev Deploys from the artifact rather than with `new`, so that a change of a contract recompiles no test.
    function create(string memory name, bytes memory arguments) internal returns (address made) {
        bytes memory code = abi.encodePacked(vm.getCode(string.concat(name, ".sol:", name)), arguments);
        assembly {
            made := create(0, add(code, 32), mload(code))
            if iszero(made) {
                returndatacopy(0, 0, returndatasize())
                revert(0, returndatasize())
            }
        }
    }

    // ---- runs -------------------------------------------------------------------------------------------------------

    function policy() internal pure returns (IPolicies.Policy memory p) {
        p.owner = OWNER;
        p.trainer = TRAINER;
        p.window = WINDOW;
        p.appeal = APPEAL;
        p.vote = VOTE;
        p.notice = NOTICE;
        p.grace = GRACE;
        p.maxUnits = MAX_UNITS;
        p.maxPerStep = MAX_PER_STEP;
        p.leverage = LEVERAGE;
        p.strikes = STRIKES;
        p.finderBps = FINDER_BPS;
        p.juryFee = JURY_FEE;
        p.bondBps = BOND_BPS;
        p.voucherCap = VOUCHER_CAP;
        p.coSigners = 1;
        p.nodeStake = NODE_STAKE;
        p.validatorStake = VALIDATOR_STAKE;
        p.penalty = PENALTY;
        p.bond = BOND;
        p.fee = FEE;
        p.reward = REWARD;
    }

    function instantPolicy() internal pure returns (IPolicies.Policy memory p) {
        p = policy();
        (p.appeal, p.vote) = (0, 0);
    }

    /// @dev Creates and funds a run.
    function open(IPolicies.Policy memory p) internal returns (uint256 run_) {
        run_ = policies.create(p, SPEC);
        runs.fund(run_, BUDGET);
    }

    /// @dev Seats all nodes and validators.
    function people(uint256 run_) internal {
        for (uint256 i; i < 3; ++i) {
            seat(run_, i);
        }
        for (uint256 i; i < 5; ++i) {
            approve(run_, validators[i], true);
            enlist(run_, validators[i], true);
        }
    }

    /// @dev Makes `run` a new run of this policy, with everyone seated and the first weights published.
    function switchTo(IPolicies.Policy memory p) internal {
        run = open(p);
        people(run);
        publish(run);
    }

    /// @dev Publishes the next version of the weights in a block of its own, and mines the next two, so that the beacon can be drawn.
    function publish(uint256 run_) internal virtual {
        publishBy(TRAINER, run_);
    }

    function publishBy(address trainer, uint256 run_) internal {
        vm.roll(block.number + 1);
        vm.warp(block.timestamp + 2);
        uint32 step = weights.published(run_);
        vm.prank(trainer);
        weights.publish(run_, step, manifestOf(step));
        vm.roll(block.number + 2);
        vm.warp(block.timestamp + 4);
    }

    function paused(uint256 run_) internal view returns (bool) {
        uint256 from = runs.status(run_).pausedFrom;
        return from != 0 && block.timestamp >= from;
    }

    function manifestOf(uint32 step) internal pure returns (bytes32) {
        return keccak256(abi.encode("manifest", step));
    }

    function beaconOf(uint256 run_, uint32 step) internal view returns (bytes32) {
        return weights.beaconOf(run_, step);
    }

    // ---- seats ------------------------------------------------------------------------------------------------------

    /// @dev The PeerID of a secp256k1 key: identity multihash, protobuf, 33 bytes of compressed key.
    function peerOf(address node) internal pure returns (bytes memory) {
        return abi.encodePacked(hex"00250802122102", keccak256(abi.encode(node)));
    }

    function consentOf(uint256 run_, uint256 i) internal view returns (Consent memory) {
        return Consent(run_, operators[i], nodes[i], peerOf(nodes[i]), 3, block.timestamp + 1 hours);
    }

    function consentHash(Consent memory c) internal pure returns (bytes32) {
        bytes32 kind =
            keccak256("Join(uint256 run,address operator,address node,bytes32 peer,uint8 hardware,uint256 deadline)");
        return keccak256(abi.encode(kind, c.run, c.operator, c.node, keccak256(c.peer), c.hardware, c.deadline));
    }

    function signConsent(Consent memory c, uint256 key) internal view returns (bytes memory) {
        return sign(consentHash(c), key);
    }

    function invitation(uint256 run_, address node, uint256 deadline) internal pure returns (bytes32) {
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

    function approve(uint256 run_, address validator, bool on) internal {
        vm.prank(OWNER);
        bench.approve(run_, validator, on);
    }

    function enlist(uint256 run_, address validator, bool on) internal {
        vm.prank(validator);
        bench.enlist(run_, on);
    }

    // ---- submissions -------------------------------------------------------------------------------------------------------

    /// @dev The submission that this node would commit next, on the newest weights.
    function nextRef(uint256 run_, address node) internal view returns (IRuns.SubmissionRef memory ref) {
        IRuns.Seat memory s = runs.seats(run_, node);
        ref.node = node;
        ref.step = weights.published(run_) - 1;
        ref.sequence = s.step == ref.step ? s.next : 0;
        ref.root = keccak256(abi.encode(run_, node, ref.step, ref.sequence));
    }

    /// @dev Commits node `i` to its next submission.
    function submit(uint256 i, uint32 units) internal returns (IRuns.SubmissionRef memory ref) {
        ref = nextRef(run, nodes[i]);
        submit(ref, units, beaconOf(run, ref.step));
    }

    /// @dev Makes this very call and no other, so that a refusal may be expected of it.
    function submit(IRuns.SubmissionRef memory ref, uint32 units, bytes32 beacon) internal {
        vm.prank(ref.node);
        runs.submit(run, ref.root, ref.step, ref.sequence, units, beacon);
    }

    function submitMany(uint256 i, uint256 many, uint32 units) internal returns (IRuns.SubmissionRef[] memory refs) {
        IRuns.SubmissionRef memory first = nextRef(run, nodes[i]);
        refs = new IRuns.SubmissionRef[](many);
        IRuns.Item[] memory items = new IRuns.Item[](many);
        for (uint32 k; k < many; ++k) {
            bytes32 root = keccak256(abi.encode(run, first.node, first.step, first.sequence + k));
            refs[k] = IRuns.SubmissionRef(first.node, first.step, first.sequence + k, root);
            items[k] = IRuns.Item(root, units);
        }
        bytes32 beacon = beaconOf(run, first.step);
        vm.prank(first.node);
        runs.submitMany(run, first.step, first.sequence, beacon, items);
    }

    // ---- verdicts ---------------------------------------------------------------------------------------------------

    function one(IRuns.SubmissionRef memory ref) internal pure returns (IRuns.SubmissionRef[] memory list) {
        list = new IRuns.SubmissionRef[](1);
        list[0] = ref;
    }

    function challenge(uint256 v, IRuns.SubmissionRef memory ref) internal returns (uint256 number) {
        return challenge(v, one(ref));
    }

    function challenge(uint256 v, IRuns.SubmissionRef[] memory list) internal returns (uint256 number) {
        vm.prank(validators[v]);
        return court.challenge(run, list, EVIDENCE);
    }

    function signVerdict(uint256 run_, bytes32 submission, uint8 outcome, uint256 samples, uint256 key)
        internal
        view
        returns (bytes memory)
    {
        bytes32 kind =
            keccak256("Verdict(uint256 run,bytes32 submission,uint8 outcome,uint256 samples,bytes32 details)");
        return sign(keccak256(abi.encode(kind, run_, submission, outcome, samples, EVIDENCE)), key);
    }

    /// @dev Validator `w`'s own hard verdict on a submission, all samples false.
    function coSignature(uint256 w, IRuns.SubmissionRef memory ref) internal view returns (ICourt.Receipt memory) {
        return coSignatureOf(w, ref, type(uint256).max);
    }

    /// @dev The same of some samples; zero: of none by itself.
    function coSignatureOf(uint256 w, IRuns.SubmissionRef memory ref, uint256 samples)
        internal
        view
        returns (ICourt.Receipt memory)
    {
        bytes memory signature = signVerdict(run, court.submissionId(run, ref), 3, samples, validatorKeys[w]);
        return ICourt.Receipt(validators[w], samples, EVIDENCE, signature);
    }

    function accuse(uint256 v, uint256 w, IRuns.SubmissionRef memory ref) internal returns (uint256 number) {
        ICourt.Receipt memory second = coSignature(w, ref);
        vm.prank(validators[v]);
        return court.accuse(run, ref, type(uint256).max, EVIDENCE, second);
    }

    /// @dev The operator of node `i` appeals.
    function appeal(uint256 i, uint256 number) internal {
        vm.prank(operators[i]);
        court.appeal(run, nodes[i], number);
    }

    /// @dev Validator `v` finds all of a case false, and hard where it was brought as hard; or finds it all good.
    function vote(uint256 v, uint256 i, uint256 number, bool uphold) internal {
        ICourt.Case memory c = court.cases(run, nodes[i], number);
        uint256 all = uphold ? (1 << c.submissions) - 1 : 0;
        ballot(v, i, number, all, c.hard ? all : 0);
    }

    function ballot(uint256 v, uint256 i, uint256 number, uint256 foundFalse, uint256 foundHard) internal {
        vm.prank(validators[v]);
        court.vote(run, nodes[i], number, foundFalse, foundHard, EVIDENCE);
    }

    /// @dev The jurors of a case vote alike, one after another, until it is decided.
    function poll(uint256 i, uint256 number, bool uphold) internal {
        for (uint256 v; v < 5; ++v) {
            if (court.isJuror(run, nodes[i], number, validators[v])) vote(v, i, number, uphold);
        }
    }

    /// @dev What an operator gets of `lost` when so many of the jurors of a case on one submission were paid.
    function compensation(uint256 lost, uint256 paid, uint256 jurors) internal pure returns (uint256) {
        return (lost - paid * (JURY_FEE / jurors)) / 2;
    }

    /// @dev What of a slash goes to whoever found the fault.
    function findersOf(uint256 slashed) internal pure returns (uint256) {
        return slashed * FINDER_BPS / 10_000;
    }

    function abstain(uint256 v, uint256 i, uint256 number) internal {
        vm.prank(validators[v]);
        court.abstain(run, nodes[i], number, "weights gone");
    }

    function challengeAgain(uint256 v, uint256 i, uint256 number) internal {
        vm.prank(validators[v]);
        court.challengeAgain(run, nodes[i], number, EVIDENCE);
    }

    function settle(uint256 i, uint256 number) internal {
        court.settle(run, nodes[i], number);
    }

    // ---- assertions -------------------------------------------------------------------------------------------------

    function assertState(IRuns.SubmissionRef memory ref, ICourt.State expected) internal view {
        assertEq(uint256(court.stateOf(run, ref)), uint256(expected));
    }

    function assertStage(uint256 i, uint256 number, ICourt.Stage expected) internal view {
        assertEq(uint256(court.cases(run, nodes[i], number).stage), uint256(expected));
    }

    function assertRole(uint256 i, IRuns.Role expected) internal view {
        assertEq(uint256(runs.seats(run, nodes[i]).role), uint256(expected));
    }

    /// @dev Units that a seat may have at risk of a verdict.
    function mostOf(address node) internal view returns (uint32) {
        IRuns.Seat memory s = runs.seats(run, node);
        (uint256 most, uint256 allowed) =
            (uint256(s.worth) + s.proven, uint256(s.worth) * policies.policy(run).leverage);
        return uint32(most < allowed ? most : allowed); // small numbers
    }

    /// @dev Seconds after which everything added now has certainly matured: six epochs of a fifth of the window.
    function ripening(uint256 window) internal pure returns (uint256) {
        return 6 * ((window + 4) / 5);
    }

    function pass(uint256 time) internal {
        vm.warp(block.timestamp + time);
        vm.roll(block.number + 1);
    }
}
