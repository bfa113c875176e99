// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Denied, TooLong} from "./interfaces/Errors.sol";
import {ICourt} from "./interfaces/ICourt.sol";
import {ILocations} from "./interfaces/ILocations.sol";

/// @title Where runs can be reached
/// @notice See ILocations.
contract Locations is ILocations {
    uint256 private constant MOST = 512;

    /// @inheritdoc ILocations
    ICourt public immutable court;
    /// @inheritdoc ILocations
    mapping(uint256 run => bytes) public located;

    /// @param court_ Which knows the owners. It may still be under construction.
    constructor(ICourt court_) {
        court = court_;
    }

    /// @inheritdoc ILocations
    function locate(uint256 run, bytes calldata where) external {
        if (msg.sender != court.policy(run).owner) revert Denied(msg.sender); // no such run: policy reverts
        if (where.length > MOST) revert TooLong(where.length, MOST);
        located[run] = where;
        emit Located(run, where);
    }
}
