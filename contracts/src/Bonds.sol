// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";

/// @title Stake of operators and validators
/// @notice One slasher, fixed at birth; no owner; nothing to upgrade. Everything not yet withdrawn can be slashed, so the
/// withdrawal delay must outlast any verdict: Runs checks that for every run it creates.
/// @dev Balance of this contract = total = sum over accounts of active + leaving; locked <= active.
contract Bonds {
    using SafeERC20 for IERC20;

    struct Account {
        uint128 active; // may back seats
        uint128 locked; // the part of `active` that backs seats and cases
        uint128 leaving; // on its way out, still slashable
        uint64 readyAt; // block time from which `leaving` may be withdrawn
    }

    error InsufficientStake(uint256 available, uint256 wanted);
    error TooEarly(uint64 readyAt);
    error NotSlasher();

    event Deposited(address indexed account, uint256 amount);
    event Unbonding(address indexed account, uint256 amount, uint64 readyAt);
    event Rebonded(address indexed account, uint256 amount);
    event Withdrawn(address indexed account, uint256 amount);
    event Slashed(address indexed account, uint256 amount, address indexed finder, uint256 finderShare);

    IERC20 public immutable token;
    address public immutable slasher;
    address public immutable sink; // receives what is slashed, less the finder's share
    uint64 public immutable delay; // seconds between unbond and withdraw
    uint256 public total;
    mapping(address => Account) public accounts;

    modifier onlySlasher() {
        if (msg.sender != slasher) revert NotSlasher();
        _;
    }

    constructor(IERC20 token_, uint64 delay_, address sink_) {
        (token, slasher, delay, sink) = (token_, msg.sender, delay_, sink_);
    }

    /// @notice Adds stake to `account`, paid by the caller (who approved it before).
    function deposit(address account, uint128 amount) external {
        accounts[account].active += amount;
        total += amount;
        emit Deposited(account, amount);
        token.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @notice Starts the way out for unlocked stake. A second call merges with the first and restarts its clock.
    function unbond(uint128 amount) external {
        Account storage a = accounts[msg.sender];
        if (a.active - a.locked < amount) revert InsufficientStake(a.active - a.locked, amount);
        a.active -= amount;
        a.leaving += amount;
        a.readyAt = uint64(block.timestamp) + delay; // block time fits 64 bits for 500 billion years
        emit Unbonding(msg.sender, amount, a.readyAt);
    }

    /// @notice Takes leaving stake back into service.
    function rebond(uint128 amount) external {
        Account storage a = accounts[msg.sender];
        if (a.leaving < amount) revert InsufficientStake(a.leaving, amount);
        a.leaving -= amount;
        a.active += amount;
        emit Rebonded(msg.sender, amount);
    }

    /// @notice Pays out what has waited long enough.
    function withdraw() external returns (uint256 amount) {
        Account storage a = accounts[msg.sender];
        if (block.timestamp < a.readyAt) revert TooEarly(a.readyAt);
        amount = a.leaving;
        a.leaving = 0;
        total -= amount;
        emit Withdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    function lock(address account, uint128 amount) external onlySlasher {
        Account storage a = accounts[account];
        if (a.active - a.locked < amount) revert InsufficientStake(a.active - a.locked, amount);
        a.locked += amount;
    }

    function unlock(address account, uint128 amount) external onlySlasher {
        Account storage a = accounts[account];
        a.locked = a.locked > amount ? a.locked - amount : 0; // a slash may have eaten into it
    }

    /// @notice Takes at most `amount`: first active stake, then leaving. Never reverts for want of stake.
    function slash(address account, uint128 amount, address finder, uint16 finderBps)
        external
        onlySlasher
        returns (uint128 taken)
    {
        Account storage a = accounts[account];
        uint128 fromActive = amount < a.active ? amount : a.active;
        uint128 rest = amount - fromActive;
        uint128 fromLeaving = rest < a.leaving ? rest : a.leaving;
        a.active -= fromActive;
        a.leaving -= fromLeaving;
        if (a.locked > a.active) a.locked = a.active;
        taken = fromActive + fromLeaving;
        if (taken == 0) return 0;
        total -= taken;
        uint256 share = (uint256(taken) * finderBps) / 10_000;
        emit Slashed(account, taken, finder, share);
        if (share != 0) token.safeTransfer(finder, share);
        if (taken != share) token.safeTransfer(sink, taken - share);
    }
}
