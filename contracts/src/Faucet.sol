// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IFaucet} from "./interfaces/IFaucet.sol";
import {TooEarly, ZeroAddress, ZeroAmount} from "./interfaces/Errors.sol";

/// @title A faucet with a rate limit
/// @notice See IFaucet. It has no owner.
contract Faucet is IFaucet {
    using SafeERC20 for IERC20;

    /// @inheritdoc IFaucet
    IERC20 public immutable token;
    /// @inheritdoc IFaucet
    uint256 public immutable amount;
    /// @inheritdoc IFaucet
    uint256 public immutable most;
    /// @inheritdoc IFaucet
    uint256 public immutable period;
    /// @inheritdoc IFaucet
    mapping(address account => uint256) public next;
    uint256 private _current; // the period that `_given` counts
    uint256 private _given;

    /// @param most_ At least `amount_`, or nothing is ever given.
    constructor(IERC20 token_, uint256 amount_, uint256 most_, uint256 period_) {
        if (address(token_) == address(0)) revert ZeroAddress();
        if (amount_ == 0 || most_ < amount_ || period_ == 0) revert ZeroAmount();
        (token, amount, most, period) = (token_, amount_, most_, period_);
    }

    /// @inheritdoc IFaucet
    function given() public view returns (uint256) {
        return _current == block.timestamp / period ? _given : 0;
    }

    /// @inheritdoc IFaucet
    function drip(address account) external {
        uint256 from = next[account];
        if (block.timestamp < from) revert TooEarly(from);
        uint256 current = block.timestamp / period;
        uint256 sum = given() + amount;
        if (sum > most) revert Exhausted((current + 1) * period);
        next[account] = block.timestamp + period;
        (_current, _given) = (current, sum);
        emit Dripped(account, amount);
        token.safeTransfer(account, amount);
    }
}
