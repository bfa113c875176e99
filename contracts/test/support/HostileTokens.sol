// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// @notice Burns a hundredth of every transfer.
contract FeeToken is ERC20("Fee", "FEE") {
    constructor(uint256 supply) {
        _mint(msg.sender, supply);
    }

    function _update(address from, address to, uint256 value) internal override {
        uint256 fee = from == address(0) || to == address(0) ? 0 : value / 100;
        super._update(from, to, value - fee);
        if (fee != 0) super._update(from, address(0), fee);
    }
}

/// @notice Answers every transfer with false and moves nothing.
contract FalseToken is ERC20("False", "NO") {
    function transfer(address, uint256) public pure override returns (bool) {
        return false;
    }

    function transferFrom(address, address, uint256) public pure override returns (bool) {
        return false;
    }
}

/// @notice Refuses to pay one account, as tokens with block lists do.
contract BlockingToken is ERC20("Blocking", "BLK") {
    address public blocked;

    constructor(uint256 supply) {
        _mint(msg.sender, supply);
    }

    function blockAccount(address account) external {
        blocked = account;
    }

    function _update(address from, address to, uint256 value) internal override {
        require(to != blocked, "blocked");
        super._update(from, to, value);
    }
}

/// @notice Calls its accomplice in the middle of every transfer.
contract ReentrantToken is ERC20("Reentrant", "RE") {
    address public accomplice;
    bytes public message;
    bool private _calling;

    constructor(uint256 supply) {
        _mint(msg.sender, supply);
    }

    /// @dev The accomplice will be called with `data` during the next transfer.
    function arm(address accomplice_, bytes calldata data) external {
        (accomplice, message) = (accomplice_, data);
    }

    function _update(address from, address to, uint256 value) internal override {
        if (accomplice != address(0) && !_calling) {
            _calling = true;
            (bool done, bytes memory answer) = accomplice.call(message);
            if (!done) {
                assembly {
                    revert(add(answer, 32), mload(answer))
                }
            }
            _calling = false;
        }
        super._update(from, to, value);
    }
}
