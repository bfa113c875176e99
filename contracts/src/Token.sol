// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title Token for development chains
/// @notice Fixed supply, minted to the deployer. In production any plain ERC-20 (no fee on transfer, no rebasing) will do.
contract Token is ERC20Permit {
    constructor(uint256 supply)
        ERC20("Murmuration development token", "MUR")
        ERC20Permit("Murmuration development token")
    {
        _mint(msg.sender, supply);
    }
}
