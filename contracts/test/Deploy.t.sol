// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {WrongAddress} from "../src/interfaces/Errors.sol";
import {World} from "./support/World.sol";

contract DeployTest is World {
    function test_the_contracts_know_each_other() public view {
        assertEq(address(runs.token()), address(token));
        assertEq(address(runs.court()), address(court));
        assertEq(address(court.runs()), address(runs));
        assertEq(address(court.bonds()), address(bonds));
        assertEq(address(bonds.token()), address(token));
        assertEq(bonds.runs(), address(runs));
        assertEq(bonds.bench(), address(bench));
        assertEq(bonds.delay(), DELAY);
        assertEq(bonds.sink(), SINK);
        assertEq(address(vouchers.runs()), address(runs));
        assertEq(address(vouchers.token()), address(token));
    }

    function test_court_deployed_in_the_wrong_place_refuses_to_live() public {
        address made = vm.computeCreateAddress(address(this), vm.getNonce(address(this)));
        vm.expectRevert(abi.encodeWithSelector(WrongAddress.selector, made, address(court)));
        create("Court", abi.encode(runs));
    }

    /// @dev With a kilobyte to spare of what EIP-170 allows.
    function test_every_contract_fits_the_chain() public view {
        address[9] memory all = [
            address(runs),
            address(court),
            address(bench),
            address(bonds),
            address(weights),
            address(policies),
            address(vouchers),
            address(locations),
            address(court.signatures())
        ];
        for (uint256 i; i < all.length; ++i) {
            assertGt(all[i].code.length, 0);
            assertLe(all[i].code.length, 24_576 - 1_024);
        }
    }
}
