// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {Bonds} from "../src/Bonds.sol";
import {Runs} from "../src/Runs.sol";
import {Token} from "../src/Token.sol";
import {Records} from "./support/Base.sol";
import {Handler} from "./support/Handler.sol";
import {Test} from "./support/Test.sol";

/// @notice What holds after any sequence of legal calls, and that no legal call reverts.
contract InvariantsTest is Test {
    Handler internal handler;
    Token internal token;
    Runs internal runs;
    Bonds internal bonds;

    function setUp() public {
        handler = new Handler();
        token = handler.token();
        runs = handler.runs();
        bonds = handler.bonds();
        targetContract(address(handler));
        targetSelector(FuzzSelector(address(handler), handler.actions()));
    }

    /// @notice From every state reached, everybody can get all that is theirs.
    function afterInvariant() external {
        handler.windUp();
        assertEq(token.balanceOf(address(runs)), 0);
        assertEq(token.balanceOf(address(bonds)), 0);
    }

    function invariant_bondsHoldWhatTheyOwe() public view {
        uint256 sum;
        for (uint256 a; a < 6; ++a) {
            (, Bonds.Account memory account) = handler.accountAt(a);
            sum += account.active + account.leaving;
        }
        assertEq(sum, bonds.total());
        assertEq(sum, token.balanceOf(address(bonds)));
    }

    function invariant_noMoreIsLockedThanIsActive() public view {
        for (uint256 a; a < 6; ++a) {
            (, Bonds.Account memory account) = handler.accountAt(a);
            assertLe(account.locked, account.active);
        }
    }

    function invariant_whatIsLockedIsWhatSeatsAndCasesLock() public view {
        for (uint256 a; a < 6; ++a) {
            (address who, Bonds.Account memory account) = handler.accountAt(a);
            if (handler.bitten(who)) assertLe(account.locked, handler.locksOf(who));
            else assertEq(account.locked, handler.locksOf(who));
        }
    }

    function invariant_runsHoldWhatIsFreeAndReserved() public view {
        uint256 sum;
        for (uint256 r; r < 2; ++r) {
            uint256 run = handler.runAt(r);
            Runs.Funds memory f = Records(address(runs)).funds(run);
            assertEq(uint256(f.free) + f.reserved, handler.paidIn(run) - handler.paidOut(run));
            sum += uint256(f.free) + f.reserved;
        }
        assertEq(sum, token.balanceOf(address(runs)));
    }

    function invariant_whatIsOwedIsReserved() public view {
        for (uint256 r; r < 2; ++r) {
            uint256 run = handler.runAt(r);
            uint256 owed = handler.owedUnits(run) * runs.policy(run).reward;
            assertEq(Records(address(runs)).funds(run).reserved, owed);
        }
    }

    function invariant_nothingIsPaidBeforeItsWindow() public view {
        for (uint256 r; r < 2; ++r) {
            for (uint256 i; i < 6; ++i) {
                address node = handler.nodeAt(i);
                uint256 run = handler.runAt(r);
                assertLe(handler.claimedUnits(run, node), handler.earnedUnits(run, node));
            }
        }
    }

    function invariant_stakeNeverLeavesBeforeTheDelay() public view {
        assertEq(handler.earlyExits(), 0);
    }

    function invariant_openHardCasesAreCounted() public view {
        for (uint256 r; r < 2; ++r) {
            for (uint256 i; i < 6; ++i) {
                address node = handler.nodeAt(i);
                uint256 run = handler.runAt(r);
                Runs.Seat memory s = Records(address(runs)).seats(run, node);
                assertEq(s.openHard, handler.openHardCases(run, node));
                if (s.openHard != 0) assertLe(s.safe, s.vested);
            }
        }
    }

    function invariant_theSupplyIsConstant() public view {
        assertEq(token.totalSupply(), 1e9 * 1e18);
    }
}
