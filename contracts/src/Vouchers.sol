// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Denied, ZeroAmount} from "./interfaces/Errors.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {IVouchers} from "./interfaces/IVouchers.sol";
import {Transfers} from "./Transfers.sol";
import {Typed} from "./Typed.sol";

/// @title Pay of validators
/// @notice See IVouchers.
contract Vouchers is IVouchers {
    using SafeERC20 for IERC20;

    bytes32 private constant VOUCHER = keccak256("Voucher(uint256 run,address validator,uint256 total)");

    /// @inheritdoc IVouchers
    IRuns public immutable runs;
    /// @inheritdoc IVouchers
    IERC20 public immutable token;
    /// @inheritdoc IVouchers
    mapping(uint256 run => uint256) public pots;
    /// @inheritdoc IVouchers
    mapping(uint256 run => mapping(address validator => uint256)) public redeemed;

    constructor(IRuns runs_) {
        (runs, token) = (runs_, runs_.token());
    }

    /// @inheritdoc IVouchers
    function fund(uint256 run, uint256 amount) external {
        runs.court().policy(run); // reverts where there is no such run
        if (amount == 0) revert ZeroAmount();
        pots[run] += amount;
        emit VouchersFunded(run, amount);
        Transfers.pull(token, msg.sender, amount);
    }

    /// @inheritdoc IVouchers
    function redeem(uint256 run, address validator, uint256 total, bytes calldata signature)
        external
        returns (uint256 amount)
    {
        IRuns.Policy memory p = runs.court().policy(run);
        bytes32 content = keccak256(abi.encode(VOUCHER, run, validator, total));
        bool signed = Typed.signedBy(address(runs), content, p.trainer, signature)
            || Typed.signedBy(address(runs), content, p.owner, signature);
        if (!signed) revert Denied(p.trainer);
        uint256 paid = redeemed[run][validator];
        uint256 pot = pots[run];
        if (total <= paid || pot == 0) revert ZeroAmount();
        amount = total - paid < pot ? total - paid : pot;
        redeemed[run][validator] = paid + amount;
        pots[run] = pot - amount;
        emit Redeemed(run, validator, amount, total);
        token.safeTransfer(validator, amount);
    }
}
