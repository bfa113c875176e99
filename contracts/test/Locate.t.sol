// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../src/interfaces/IPolicies.sol";
import {Denied, NoSuchRun, TooLong} from "../src/interfaces/Errors.sol";
import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILocations} from "../src/interfaces/ILocations.sol";
import {IRuns} from "../src/interfaces/IRuns.sol";
import {IHasLocations, World} from "./support/World.sol";

/// @notice Locations: locate.
contract LocateTest is World {
    address internal constant OTHER_OWNER = address(0x1A);
    bytes internal constant WHERE = '{"hub":"https://hub.example"}';

    function test_its_address_follows_from_that_of_runs() public view {
        ICourt found = runs.court();
        assertEq(
            address(IHasLocations(address(found)).locations().policies()), address(ICourt(address(found)).policies())
        );
        assertLe(address(locations).code.length, 24_576);
    }

    function test_the_owner_says_where_a_run_is() public {
        assertEq(locations.located(run).length, 0);
        vm.prank(OWNER);
        vm.expectEmit(address(locations));
        emit ILocations.Located(run, WHERE);
        locations.locate(run, WHERE);
        assertEq(keccak256(locations.located(run)), keccak256(WHERE));
    }

    function test_what_is_said_later_replaces_it_and_empty_takes_it_back() public {
        vm.startPrank(OWNER);
        locations.locate(run, new bytes(512));
        locations.locate(run, WHERE);
        assertEq(keccak256(locations.located(run)), keccak256(WHERE));
        vm.expectEmit(address(locations));
        emit ILocations.Located(run, "");
        locations.locate(run, "");
        assertEq(locations.located(run).length, 0);
    }

    function test_nobody_but_the_owner_says_it(address who) public {
        if (who == OWNER) return;
        vm.prank(who);
        expectRefusal(Denied.selector, who);
        locations.locate(run, WHERE);
    }

    function test_another_runs_owner_speaks_for_its_own_run_only() public {
        uint256 first = run;
        IPolicies.Policy memory p = policy();
        p.owner = OTHER_OWNER;
        run = policies.create(p, SPEC);
        vm.startPrank(OTHER_OWNER);
        locations.locate(run, WHERE);
        expectRefusal(Denied.selector, OTHER_OWNER);
        locations.locate(first, WHERE);
        assertEq(locations.located(first).length, 0);
    }

    function test_there_is_nothing_to_say_of_no_run() public {
        expectRefusal(NoSuchRun.selector, 9);
        locations.locate(9, WHERE);
    }

    function test_more_than_512_bytes_are_refused(uint256 length) public {
        length = bound(length, 0, 2_000);
        vm.prank(OWNER);
        if (length > 512) expectRefusal(TooLong.selector, length, 512);
        locations.locate(run, new bytes(length));
    }
}
