// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {WrongAmount} from "./interfaces/Errors.sol";

/// @title Taking tokens in
library Transfers {
    /// @dev Takes exactly `amount` from `from`. The books count what was asked for, so a token that delivers anything else
    /// (a fee on transfer, a rebase, a deposit nested inside the transfer) is refused.
    function pull(IERC20 token, address from, uint256 amount) internal {
        uint256 before = token.balanceOf(address(this));
        SafeERC20.safeTransferFrom(token, from, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert WrongAmount(received, amount);
    }
}
