// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

// Errors that more than one contract throws.

/// @notice `who` has no such right, or a signature that was to be theirs is not.
error Denied(address who);

/// @notice The seat, case, validator or run is not in a state that allows this.
error WrongState();

/// @notice The time for this ended at `deadline`.
error TooLate(uint256 deadline);

/// @notice The time for this begins at `from`.
error TooEarly(uint256 from);

/// @notice Less stake is free (or locked in the seat) than this needs.
error InsufficientStake(uint256 available, uint256 wanted);

/// @notice Nothing was asked for.
error ZeroAmount();

/// @notice An address is missing.
error ZeroAddress();

/// @notice The token delivered another amount than was sent: it takes a fee, or moves balances by itself.
error WrongAmount(uint256 received, uint256 expected);

/// @notice A contract was deployed with the address of something else.
error WrongAddress(address actual, address expected);

/// @notice Runs are counted from 1, and there are fewer than this.
error NoSuchRun(uint256 run);

/// @notice This many bytes are more than are kept.
error TooLong(uint256 length, uint256 most);
