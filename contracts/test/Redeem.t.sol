// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IPolicies} from "../src/interfaces/IPolicies.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IRuns} from "../src/interfaces/IRuns.sol";
import {IVouchers} from "../src/interfaces/IVouchers.sol";
import {Denied, NoSuchRun, WrongAmount, ZeroAmount} from "../src/interfaces/Errors.sol";
import {FeeToken, ReentrantToken} from "./support/HostileTokens.sol";
import {Wallet} from "./support/Wallet.sol";
import {World} from "./support/World.sol";

/// @notice Vouchers: fund and redeem.
contract RedeemTest is World {
    uint256 internal constant TRAINER_KEY = 0x77;
    address internal validator;

    function setUp() public override {
        deploy();
        IPolicies.Policy memory p = policy();
        p.trainer = vm.addr(TRAINER_KEY);
        run = open(p);
        vouchers.fund(run, 1_000);
        validator = validators[0];
        seated(run, validator);
    }

    function seated(uint256 run_, address who) internal {
        approve(run_, who, true);
        enlist(run_, who, true);
    }

    function test_anyone_fills_the_pot() public {
        vm.expectEmit(address(vouchers));
        emit IVouchers.VouchersFunded(run, 5);
        vouchers.fund(run, 5);
        assertEq(vouchers.pots(run), 1_005);
        assertEq(token.balanceOf(address(vouchers)), 1_005);
        expectRefusal(ZeroAmount.selector);
        vouchers.fund(run, 0);
        expectRefusal(NoSuchRun.selector, 9);
        vouchers.fund(9, 5);
    }

    function test_a_token_that_takes_a_fee_is_refused() public {
        deployOver(IERC20(address(new FeeToken(SUPPLY))));
        policies.create(policy(), SPEC);
        expectRefusal(WrongAmount.selector, 99, 100);
        vouchers.fund(1, 100);
    }

    function test_a_cumulative_voucher_pays_the_difference() public {
        bytes memory first = voucher(run, validator, 300, TRAINER_KEY);
        bytes memory second = voucher(run, validator, 450, TRAINER_KEY);
        vm.expectEmit(address(vouchers));
        emit IVouchers.Redeemed(run, validator, 300, 300);
        assertEq(vouchers.redeem(run, validator, 300, first), 300);
        expectRefusal(ZeroAmount.selector);
        vouchers.redeem(run, validator, 300, first);
        assertEq(vouchers.redeem(run, validator, 450, second), 150);
        expectRefusal(ZeroAmount.selector);
        vouchers.redeem(run, validator, 300, first);
        assertEq(token.balanceOf(validator), 450);
        assertEq(vouchers.pots(run), 550);
        assertEq(vouchers.redeemed(run, validator), 450);
    }

    function test_vouchers_lost_on_the_way_do_not_matter() public {
        assertEq(vouchers.redeem(run, validator, 450, voucher(run, validator, 450, TRAINER_KEY)), 450);
    }

    function test_a_dry_pot_owes_the_rest() public {
        bytes memory signature = voucher(run, validator, 1_500, TRAINER_KEY);
        assertEq(vouchers.redeem(run, validator, 1_500, signature), 1_000);
        expectRefusal(ZeroAmount.selector);
        vouchers.redeem(run, validator, 1_500, signature);
        vouchers.fund(run, 800);
        assertEq(vouchers.redeem(run, validator, 1_500, signature), 500);
        assertEq(vouchers.pots(run), 300);
    }

    function test_the_largest_voucher_pays_the_pot() public {
        bytes memory signature = voucher(run, validator, type(uint256).max, TRAINER_KEY);
        assertEq(vouchers.redeem(run, validator, type(uint256).max, signature), 1_000);
    }

    function test_a_voucher_is_for_one_run_one_validator_one_total_and_one_chain() public {
        bytes memory signature = voucher(run, validator, 300, TRAINER_KEY);
        address trainer = vm.addr(TRAINER_KEY);
        expectRefusal(Denied.selector, trainer);
        vouchers.redeem(run, validator, 301, signature);
        expectRefusal(Denied.selector, trainer);
        vouchers.redeem(run, STRANGER, 300, signature);
        IPolicies.Policy memory p = policy();
        p.trainer = trainer;
        uint256 other = open(p);
        vouchers.fund(other, 1_000);
        expectRefusal(Denied.selector, trainer);
        vouchers.redeem(other, validator, 300, signature);
        vm.chainId(8453);
        expectRefusal(Denied.selector, trainer);
        vouchers.redeem(run, validator, 300, signature);
        vm.chainId(31337);
        bytes memory stranger = voucher(run, validator, 300, keys[0]);
        expectRefusal(Denied.selector, trainer);
        vouchers.redeem(run, validator, 300, stranger);
        vouchers.redeem(run, validator, 300, signature);
    }

    function test_one_runs_vouchers_leave_anothers_pot_alone() public {
        IPolicies.Policy memory p = policy();
        p.trainer = vm.addr(TRAINER_KEY);
        uint256 other = open(p);
        vouchers.fund(other, 10);
        seated(other, validator);
        vouchers.redeem(other, validator, 300, voucher(other, validator, 300, TRAINER_KEY));
        assertEq(vouchers.pots(run), 1_000);
        assertEq(token.balanceOf(validator), 10);
    }

    function test_the_owner_signs_too_and_may_be_a_contract() public {
        Wallet owner = new Wallet();
        IPolicies.Policy memory p = policy();
        p.owner = address(owner);
        run = policies.create(p, SPEC);
        vouchers.fund(run, 1_000);
        expectRefusal(Denied.selector, TRAINER);
        vouchers.redeem(run, address(owner), 1_000, "");
        owner.sign(typed(voucherHash(run, address(owner), 1_000)));
        assertEq(vouchers.redeem(run, address(owner), 1_000, ""), 1_000); // how a run gets back what it did not need
    }

    /// @dev An account that delegates to code (EIP-7702) still has its key.
    function test_a_trainer_with_code_still_signs_with_its_key() public {
        vm.etch(vm.addr(TRAINER_KEY), hex"ef01000000000000000000000000000000000000000000");
        assertEq(vouchers.redeem(run, validator, 300, voucher(run, validator, 300, TRAINER_KEY)), 300);
    }

    function test_reentering_redeem_pays_nothing_twice() public {
        ReentrantToken re = new ReentrantToken(SUPPLY);
        deployOver(IERC20(address(re)));
        IPolicies.Policy memory p = policy();
        p.trainer = vm.addr(TRAINER_KEY);
        run = policies.create(p, SPEC);
        vouchers.fund(run, 1_000);
        Wallet thief = new Wallet();
        bonds.deposit(address(thief), STAKE);
        seated(run, address(thief));
        bytes memory signature = voucher(run, address(thief), 400, TRAINER_KEY);
        bytes memory again = abi.encodeCall(vouchers.redeem, (run, address(thief), 400, signature));
        re.arm(address(thief), abi.encodeCall(thief.act, (address(vouchers), again)));
        expectRefusal(ZeroAmount.selector);
        vouchers.redeem(run, address(thief), 400, signature);
    }

    function test_budgets_are_out_of_reach_of_vouchers() public {
        vouchers.redeem(run, validator, BUDGET, voucher(run, validator, BUDGET, TRAINER_KEY));
        assertEq(runs.funds(run).free, BUDGET);
    }

    function voucherHash(uint256 run_, address to, uint256 total) internal pure returns (bytes32) {
        return keccak256(abi.encode(keccak256("Voucher(uint256 run,address validator,uint256 total)"), run_, to, total));
    }

    function voucher(uint256 run_, address to, uint256 total, uint256 key) internal view returns (bytes memory) {
        return sign(voucherHash(run_, to, total), key);
    }
}
