// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

/// @title Stake of operators and validators
/// @notice Two slashers, Runs and Bench, fixed at birth; no owner; nothing to upgrade. Stake backs seats by being locked.
/// Only locked stake can be slashed, and locked stake cannot leave: what is on its way out backs nothing, and no verdict
/// can strand it.
/// @dev Balance of this contract >= total = sum over accounts of active + leaving; locked <= active; locked = sum of the
/// account's seats in Runs and Bench. (Tokens sent here without `deposit` belong to nobody.)
interface IBonds {
    struct Account {
        uint128 active; // may back seats
        uint128 locked; // the part of `active` that backs seats
        uint128 leaving; // on its way out
        uint64 readyAt; // block time from which `leaving` may be withdrawn
    }

    struct Payment {
        address account;
        uint128 amount;
    }

    error NotSlasher(address caller);

    event Deposited(address indexed account, uint256 amount);
    event Unbonding(address indexed account, uint256 amount, uint64 readyAt);
    event Rebonded(address indexed account, uint256 amount);
    event Withdrawn(address indexed account, uint256 amount);
    event Slashed(address indexed account, uint256 amount, address indexed finder, uint256 finderShare);
    event Disbursed(address indexed account, uint256 amount);
    event Moved(address indexed from, address indexed to, uint256 amount);

    function token() external view returns (IERC20);

    /// @notice Seconds between unbond and withdraw; longer than the window, appeal and vote of every run.
    function delay() external view returns (uint64);

    /// @notice Account that is credited with what is slashed, less the finder's share.
    function sink() external view returns (address);

    function runs() external view returns (address);
    function bench() external view returns (address);

    /// @notice Sum over all accounts of active + leaving; never more than 128 bits, so no account can overflow.
    function total() external view returns (uint128);

    function accounts(address account) external view returns (Account memory);

    /// @notice Adds stake to `account`, paid by the caller (who approved it before).
    function deposit(address account, uint128 amount) external;

    /// @notice Starts the way out for unlocked stake. A second call merges with the first and restarts its clock.
    function unbond(uint128 amount) external;

    /// @notice Takes leaving stake back into service.
    function rebond(uint128 amount) external;

    /// @notice Pays out what has waited long enough.
    function withdraw() external returns (uint256 amount);

    // ---- slashers only ----------------------------------------------------------------------------------------------

    /// @notice Makes `amount` of an account's stake back a seat.
    function lock(address account, uint128 amount) external;

    /// @notice Frees stake that backed a seat.
    function unlock(address account, uint128 amount) external;

    /// @notice Moves stake that backs a seat, still locked, to the account that takes the seat over.
    function move(address from, address to, uint128 amount) external;

    /// @notice Takes at most `amount` out of an account's locked stake and credits it to the finder and the sink, as stake:
    /// no token moves, so no receiver can block a verdict. Never reverts for want of stake.
    function slash(address account, uint128 amount, address finder, uint16 finderBps) external returns (uint128 taken);

    /// @notice What a vote moves, at once: takes at most each charge out of the locked stake of its account, and pays to each
    /// account its payment, in turn, as far as it reaches; the rest to the sink.
    function disburse(Payment[] calldata charges, Payment[] calldata payments) external;
}
