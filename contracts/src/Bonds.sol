// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IBonds} from "./interfaces/IBonds.sol";
import {InsufficientStake, TooEarly, ZeroAddress, ZeroAmount} from "./interfaces/Errors.sol";
import {Transfers} from "./Transfers.sol";

/// @title Stake of operators and validators
/// @notice See IBonds.
contract Bonds is IBonds {
    using SafeERC20 for IERC20;

    /// @inheritdoc IBonds
    IERC20 public immutable token;
    /// @inheritdoc IBonds
    uint64 public immutable delay;
    /// @inheritdoc IBonds
    address public immutable sink;
    /// @inheritdoc IBonds
    address public immutable runs;
    /// @inheritdoc IBonds
    address public immutable bench;
    /// @inheritdoc IBonds
    uint128 public total;
    mapping(address => Account) internal _accounts;

    modifier onlySlasher() {
        if (msg.sender != runs && msg.sender != bench) revert NotSlasher(msg.sender);
        _;
    }

    constructor(IERC20 token_, uint64 delay_, address sink_, address runs_, address bench_) {
        if (sink_ == address(0)) revert ZeroAddress();
        (token, delay, sink, runs, bench) = (token_, delay_, sink_, runs_, bench_);
    }

    /// @inheritdoc IBonds
    function accounts(address account) external view returns (Account memory) {
        return _accounts[account];
    }

    /// @inheritdoc IBonds
    function deposit(address account, uint128 amount) external {
        if (amount == 0) revert ZeroAmount();
        total += amount;
        _accounts[account].active += amount;
        emit Deposited(account, amount);
        Transfers.pull(token, msg.sender, amount);
    }

    /// @inheritdoc IBonds
    function unbond(uint128 amount) external {
        if (amount == 0) revert ZeroAmount();
        Account storage a = _accounts[msg.sender];
        if (a.active - a.locked < amount) revert InsufficientStake(a.active - a.locked, amount);
        a.active -= amount;
        a.leaving += amount;
        a.readyAt = uint64(block.timestamp) + delay; // block time fits 64 bits for 500 billion years
        emit Unbonding(msg.sender, amount, a.readyAt);
    }

    /// @inheritdoc IBonds
    function rebond(uint128 amount) external {
        if (amount == 0) revert ZeroAmount();
        Account storage a = _accounts[msg.sender];
        if (a.leaving < amount) revert InsufficientStake(a.leaving, amount);
        a.leaving -= amount;
        a.active += amount;
        emit Rebonded(msg.sender, amount);
    }

    /// @inheritdoc IBonds
    function withdraw() external returns (uint256 amount) {
        Account storage a = _accounts[msg.sender];
        amount = a.leaving;
        if (amount == 0) revert ZeroAmount();
        if (block.timestamp < a.readyAt) revert TooEarly(a.readyAt);
        a.leaving = 0;
        total -= uint128(amount); // was a uint128 just above
        emit Withdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    // ---- slashers only ----------------------------------------------------------------------------------------------

    /// @inheritdoc IBonds
    function lock(address account, uint128 amount) external onlySlasher {
        Account storage a = _accounts[account];
        if (a.active - a.locked < amount) revert InsufficientStake(a.active - a.locked, amount);
        a.locked += amount;
    }

    /// @inheritdoc IBonds
    function unlock(address account, uint128 amount) external onlySlasher {
        _accounts[account].locked -= amount;
    }

    /// @inheritdoc IBonds
    function move(address from, address to, uint128 amount) external onlySlasher {
        Account storage a = _accounts[from];
        (a.active, a.locked) = (a.active - amount, a.locked - amount);
        Account storage b = _accounts[to];
        (b.active, b.locked) = (b.active + amount, b.locked + amount);
        emit Moved(from, to, amount);
    }

    /// @inheritdoc IBonds
    function slash(address account, uint128 amount, address finder, uint16 finderBps)
        external
        onlySlasher
        returns (uint128 taken)
    {
        Account storage a = _accounts[account];
        taken = amount < a.locked ? amount : a.locked;
        if (taken == 0) return 0;
        (a.active, a.locked) = (a.active - taken, a.locked - taken);
        uint128 share = uint128((uint256(taken) * finderBps) / 10_000); // at most `taken`: slashers pass at most 10,000
        _accounts[finder].active += share;
        if (taken != share) _accounts[sink].active += taken - share;
        emit Slashed(account, taken, finder, share);
    }

    /// @inheritdoc IBonds
    function disburse(Payment[] calldata charges, Payment[] calldata payments) external onlySlasher {
        uint128 left;
        for (uint256 i; i < charges.length; ++i) {
            left += _take(charges[i].account, charges[i].amount, msg.sender, charges[i].amount);
        }
        for (uint256 i; i < payments.length; ++i) {
            (address to, uint128 amount) = (payments[i].account, payments[i].amount);
            if (amount > left) amount = left;
            if (amount == 0) continue;
            left -= amount;
            _accounts[to].active += amount;
            emit Disbursed(to, amount);
        }
        if (left != 0) _accounts[sink].active += left;
    }

    /// @dev Takes at most `amount` of what an account has locked; whoever calls credits it.
    function _take(address account, uint128 amount, address finder, uint256 share) private returns (uint128 taken) {
        Account storage a = _accounts[account];
        taken = amount < a.locked ? amount : a.locked;
        if (taken == 0) return 0;
        (a.active, a.locked) = (a.active - taken, a.locked - taken);
        emit Slashed(account, taken, finder, share);
    }
}
