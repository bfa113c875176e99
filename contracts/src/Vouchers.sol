// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Denied, ZeroAmount} from "./interfaces/Errors.sol";
import {IPolicies} from "./interfaces/IPolicies.sol";
import {IRuns} from "./interfaces/IRuns.sol";
import {ISignatures} from "./interfaces/ISignatures.sol";
import {IVouchers} from "./interfaces/IVouchers.sol";
import {Transfers} from "./Transfers.sol";

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
    IPolicies private immutable policies;
    ISignatures private immutable signatures;
    /// @inheritdoc IVouchers
    mapping(uint256 run => uint256) public pots;
    /// @inheritdoc IVouchers
    mapping(uint256 run => mapping(address validator => uint256)) public redeemed;
    mapping(uint256 run => Period) internal _periods;

    constructor(IRuns runs_) {
        (runs, token) = (runs_, runs_.token());
        (policies, signatures) = (runs_.court().policies(), runs_.court().signatures());
    }

    /// @inheritdoc IVouchers
    function fund(uint256 run, uint256 amount) external {
        policies.policy(run); // reverts where there is no such run
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
        IPolicies.Policy memory p = policies.policy(run);
        bytes32 content = keccak256(abi.encode(VOUCHER, run, validator, total));
        uint256 paid = redeemed[run][validator];
        uint256 most = pots[run];
        bool owners = signatures.signedBy(content, p.owner, signature);
        uint256 capped;
        if (!owners) {
            address trainer = runs.weights().trainer(run);
            if (!signatures.signedBy(content, trainer, signature)) revert Denied(trainer);
            if (runs.bench().validators(run, validator).since == 0) revert Denied(validator);
            capped = _left(run, p);
            if (capped < most) most = capped;
        }
        if (total <= paid || most == 0) revert ZeroAmount();
        amount = total - paid < most ? total - paid : most;
        redeemed[run][validator] = paid + amount;
        pots[run] -= amount;
        // a block time; at most the cap, a uint96
        if (!owners) {
            _periods[run] = Period(uint64(block.timestamp / p.window), uint192(p.voucherCap - capped + amount));
        }
        emit Redeemed(run, validator, amount, total);
        token.safeTransfer(validator, amount);
    }

    /// @inheritdoc IVouchers
    function left(uint256 run) external view returns (uint256) {
        return _left(run, policies.policy(run));
    }

    function _left(uint256 run, IPolicies.Policy memory p) private view returns (uint256) {
        Period storage period = _periods[run];
        return period.number == block.timestamp / p.window ? p.voucherCap - period.paid : p.voucherCap;
    }
}
