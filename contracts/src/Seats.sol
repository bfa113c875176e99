// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Denied, TooEarly, TooLate, TooLong, WrongState} from "./interfaces/Errors.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {ISignatures} from "./interfaces/ISignatures.sol";
import {Budgets} from "./Budgets.sol";

/// @title Seats of nodes
/// @notice The second part of Runs: who works for whom, with which key and which stake. See IRuns.
abstract contract Seats is Budgets {
    struct Offer {
        address to;
        uint40 deadline;
    }

    uint256 private constant PEER = 64; // bytes of a PeerID: one of a secp256k1 key has 39, the longest in use 42

    mapping(uint256 run => mapping(address seat => Seat)) internal _seats;
    mapping(uint256 run => mapping(address key => address seat)) internal _names; // of keys rotated in
    /// @inheritdoc IRuns
    mapping(uint256 run => mapping(address seat => Offer)) public offers;

    /// @inheritdoc IRuns
    function seats(uint256 run, address node) external view returns (Seat memory) {
        (, Seat storage s) = _seatOf(run, node);
        return s;
    }

    /// @inheritdoc IRuns
    function seatOf(uint256 run, address node) public view returns (address seat) {
        (seat,) = _seatOf(run, node);
    }

    /// @inheritdoc IRuns
    function parties(uint256 run, address seat)
        external
        view
        returns (address operator, address key, uint256 locked, uint256 spent)
    {
        Seat storage s = _seats[run][seat];
        return (s.operator, s.rotated ? s.key : seat, s.locked, s.spent);
    }

    /// @inheritdoc IRuns
    function join(
        uint256 run,
        address node,
        bytes calldata peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata nodeSig,
        bytes calldata gateSig
    ) external {
        _requireRun(run);
        address gate = _charters[run].gate;
        (, Seat storage s) = _seatOf(run, node);
        if (s.role == Role.Banned) revert WrongState();
        if (s.role != Role.None) _only(s.operator);
        if (s.rotated && s.key != node) revert Denied(node);
        _requireConsent(run, node, peer, hardware, deadline, nodeSig);
        if (gate != address(0)) {
            if (!_signatures().invites(gate, run, node, deadline, gateSig)) revert Denied(gate);
        }
        (s.operator, s.role, s.hardware, s.since, s.until) = (msg.sender, Role.Active, hardware, _block(), 0);
        emit Joined(run, node, msg.sender, peer, hardware);
        _lockUp(run, s);
    }

    /// @inheritdoc IRuns
    function rotate(
        uint256 run,
        address node,
        address newNode,
        bytes calldata peer,
        uint256 deadline,
        bytes calldata nodeSig
    ) external {
        (address seat, Seat storage s) = _operated(run, node);
        if (_seats[run][newNode].role != Role.None || _names[run][newNode] != address(0)) revert WrongState();
        _requireConsent(run, newNode, peer, s.hardware, deadline, nodeSig);
        _names[run][newNode] = seat;
        (s.rotated, s.key, s.since) = (true, newNode, _block());
        emit Rotated(run, newNode, seat, peer);
    }

    /// @inheritdoc IRuns
    function offer(uint256 run, address node, address to, uint40 deadline) external {
        (address seat,) = _operated(run, node);
        offers[run][seat] = Offer(to, deadline);
        emit Offered(run, seat, to, deadline);
    }

    /// @inheritdoc IRuns
    function accept(uint256 run, address node) external {
        (address seat, Seat storage s) = _seatOf(run, node);
        Offer storage o = offers[run][seat];
        _only(o.to);
        if (block.timestamp > o.deadline) revert TooLate(o.deadline);
        address from = s.operator;
        delete offers[run][seat].to;
        (s.operator, s.since) = (msg.sender, _block());
        emit HandedOver(run, seat, msg.sender, from);
        bonds.move(from, msg.sender, s.locked);
    }

    /// @inheritdoc IRuns
    function leave(uint256 run, address node) external {
        (address seat, Seat storage s) = _seatOf(run, node);
        if (!_serves(s)) revert WrongState();
        if (s.locked >= _charters[run].floor) _only(s.operator);
        _end(run, seat, s, s.role == Role.Active ? Role.Left : s.role, block.timestamp);
    }

    /// @inheritdoc IRuns
    function ban(uint256 run, address node) external onlyOwner(run) {
        (address seat, Seat storage s) = _seatOf(run, node);
        if (s.role != Role.Active && s.role != Role.Left) revert WrongState();
        _end(run, seat, s, Role.Banned, s.role == Role.Active ? _noticed(run) : s.until);
    }

    /// @inheritdoc IRuns
    function release(uint256 run, address node) external {
        (address seat, Seat storage s) = _seatOf(run, node);
        (address operator, uint96 amount, uint256 from, uint256 openCases) =
            (s.operator, s.locked, s.until, s.openCases);
        if (from == 0 || amount == 0) revert WrongState();
        if (openCases != 0) revert CaseOpen(openCases);
        from += _charters[run].span;
        if (block.timestamp < from) revert TooEarly(from);
        (s.locked, s.worth, s.proven) = (0, 0, 0);
        delete offers[run][seat].to;
        emit Released(run, seat, operator, amount);
        bonds.unlock(operator, amount);
    }

    // ---- shared -----------------------------------------------------------------------------------------------------

    /// @dev The seat that `node` holds or held.
    function _seatOf(uint256 run, address node) internal view returns (address seat, Seat storage s) {
        (seat, s) = (node, _seats[run][node]);
        if (s.role != Role.None) return (seat, s);
        address name = _names[run][node];
        if (name != address(0)) (seat, s) = (name, _seats[run][name]);
    }

    /// @dev The seat of `node`, if the caller operates it.
    function _operated(uint256 run, address node) private view returns (address seat, Seat storage s) {
        (seat, s) = _seatOf(run, node);
        _only(s.operator);
    }

    function _serves(Seat storage s) internal view returns (bool) {
        return s.role == Role.Active || (s.role == Role.Banned && block.timestamp < s.until);
    }

    /// @dev Sets the stake of a seat, and what it is worth in units; in no more than a ring holds.
    function _stake(Seat storage s, uint256 reward, uint256 locked) internal {
        uint256 worth = reward == 0 ? type(uint32).max : locked / reward;
        if (worth > type(uint32).max) worth = type(uint32).max;
        (s.locked, s.worth) = (uint96(locked), uint32(worth)); // at most nodeStake, a uint96; see above
    }

    function _end(uint256 run, address seat, Seat storage s, Role role, uint256 until) internal {
        (s.role, s.until) = (role, uint40(until)); // a block time, or one of _noticed
        emit Left(run, seat, role, until);
    }

    /// @dev The node's word that it works for the caller. Nodes are secp256k1 keys (the same as their PeerID), never contracts.
    function _requireConsent(
        uint256 run,
        address node,
        bytes calldata peer,
        uint8 hardware,
        uint256 deadline,
        bytes calldata nodeSig
    ) private view {
        if (block.timestamp > deadline) revert TooLate(deadline);
        if (peer.length > PEER) revert TooLong(peer.length, PEER);
        bytes32 name = keccak256(peer);
        if (!_signatures().joins(run, msg.sender, node, name, hardware, deadline, nodeSig)) revert Denied(node);
    }

    /// @dev Locks what is missing of the caller's stake.
    function _lockUp(uint256 run, Seat storage s) private {
        (uint96 locked, uint96 wanted) = (s.locked, _charters[run].nodeStake);
        if (locked >= wanted) return;
        _stake(s, _limits[run].reward, wanted);
        bonds.lock(msg.sender, wanted - locked);
    }

    function _signatures() private view returns (ISignatures) {
        return court.signatures();
    }

    function _block() private view returns (uint40) {
        return uint40(block.number); // a block a millisecond would fill 40 bits in 34 years; chains make one a second
    }
}
