// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Denied, TooLong} from "./interfaces/Errors.sol";
import {IPolicies} from "./interfaces/IPolicies.sol";
import {ILocations} from "./interfaces/ILocations.sol";

/// @title Where runs can be reached
/// @notice See ILocations.
contract Locations is ILocations {
    uint256 private constant MOST = 512;

    /// @inheritdoc ILocations
    IPolicies public immutable policies;
    /// @inheritdoc ILocations
    mapping(uint256 run => bytes) public located;

    /// @param policies_ Which knows the owners.
    constructor(IPolicies policies_) {
        policies = policies_;
    }

    /// @inheritdoc ILocations
    function locate(uint256 run, bytes calldata where) external {
        if (msg.sender != policies.ownerOf(run)) revert Denied(msg.sender); // no such run: it reverts
        if (where.length > MOST) revert TooLong(where.length, MOST);
        located[run] = where;
        emit Located(run, where);
    }
}
