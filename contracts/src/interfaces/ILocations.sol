// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "./IPolicies.sol";

/// @title Where runs can be reached
/// @notice Each run's owner may say where its hub, the origin of its weights and bootnodes are, for those who do not find them
/// through peers. Court's constructor makes this contract, so its address follows from that of Runs.
interface ILocations {
    event Located(uint256 indexed run, bytes where);

    function policies() external view returns (IPolicies);

    /// @notice What the owner of `run` said last; empty while it says nothing.
    function located(uint256 run) external view returns (bytes memory);

    /// @notice Says where a run is. Only the run's owner may.
    /// @param where At most 512 bytes of canonical JSON, {"bootnodes":[multiaddr …],"hub":"https://…","origin":"https://…"}, each
    /// of them if the owner likes. Nothing here reads it. Empty takes back what was said.
    function locate(uint256 run, bytes calldata where) external;
}
