// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

/// @title Development tokens for whoever tries a run
/// @notice Gives every account `amount` once in `period` seconds, and all of them together at most `most` in a period: addresses
/// cost nothing, so only the second bounds how fast it is emptied. It is filled by sending tokens to it, and nobody gets them
/// back: for tokens without a price alone.
interface IFaucet {
    /// @notice All that a period may give was given; the next begins at `from`.
    error Exhausted(uint256 from);

    event Dripped(address indexed account, uint256 amount);

    function token() external view returns (IERC20);

    /// @notice What one account gets at a time.
    function amount() external view returns (uint256);

    /// @notice Most that all accounts get in a period; periods begin at multiples of `period` in block time.
    function most() external view returns (uint256);

    /// @notice In seconds.
    function period() external view returns (uint256);

    /// @notice Given in the present period.
    function given() external view returns (uint256);

    /// @notice Block time from which `account` may be given more; 0: it never was given any.
    function next(address account) external view returns (uint256);

    /// @notice Gives `account` its tokens. Anybody may ask for it, and pays the gas. Reverts with TooEarly before `next`, with
    /// Exhausted while others have had it all.
    function drip(address account) external;
}
