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

    /// @dev What the trainer's vouchers paid in the period that was the last in which they paid.
    struct Period {
        uint64 number;
        uint192 paid;
    }

    bytes32 private constant VOUCHER = keccak256("Voucher(uint256 run,address validator,uint256 total)");

    /// @inheritdoc IVouchers
    IRuns public immutable runs;
    /// @inheritdoc IVouchers
    IERC20 public immutable token;
    /// @inheritdoc IVouchers
    mapping(uint256 run => uint256) public pots;
    /// @inheritdoc IVouchers
    mapping(uint256 run => mapping(address validator => uint256)) public redeemed;
    mapping(uint256 run => Period) internal _periods;

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
        uint256 paid = redeemed[run][validator];
        uint256 most = pots[run];
        bool owners = Typed.signedBy(address(runs), content, p.owner, signature);
        uint256 capped;
        if (!owners) {
            address trainer = runs.weights().trainer(run);
            if (!Typed.signedBy(address(runs), content, trainer, signature)) revert Denied(trainer);
            if (runs.court().validators(run, validator).since == 0) revert Denied(validator);
            capped = _left(run, p);
            if (capped < most) most = capped;
        }
        if (total <= paid || most == 0) revert ZeroAmount();
        amount = total - paid < most ? total - paid : most;
        redeemed[run][validator] = paid + amount;
        pots[run] -= amount;
        // a block time; at most the cap, a uint96
        if (!owners) _periods[run] = Period(uint64(block.timestamp / p.window), uint192(p.voucherCap - capped + amount));
        emit Redeemed(run, validator, amount, total);
        token.safeTransfer(validator, amount);
    }

    /// @inheritdoc IVouchers
    function left(uint256 run) external view returns (uint256) {
        return _left(run, runs.court().policy(run));
    }

    function _left(uint256 run, IRuns.Policy memory p) private view returns (uint256) {
        Period storage period = _periods[run];
        return period.number == block.timestamp / p.window ? p.voucherCap - period.paid : p.voucherCap;
    }
}
