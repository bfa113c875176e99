// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IRuns} from "./IRuns.sol";

/// @title Pay of validators
/// @notice Each run keeps a pot here, apart from the budget that backs submissions, and pays validators out of it by
/// cumulative vouchers. A validator trusts the run to fill the pot, and redeems as often as it likes.
/// @dev Balance of this contract >= sum of all pots.
interface IVouchers {
    event VouchersFunded(uint256 indexed run, uint256 amount);
    event Redeemed(uint256 indexed run, address indexed validator, uint256 amount, uint256 total);

    function runs() external view returns (IRuns);
    function token() external view returns (IERC20);

    /// @notice Tokens that can pay vouchers of `run`.
    function pots(uint256 run) external view returns (uint256);

    /// @notice What the vouchers of `validator` have paid so far.
    function redeemed(uint256 run, address validator) external view returns (uint256);

    /// @notice Adds to the pot, paid by the caller (who approved it before). The run takes back what it does not need with a
    /// voucher to its owner.
    function fund(uint256 run, uint256 amount) external;

    /// @notice What vouchers signed by the trainer may still pay in the present period, which lasts one window of the run.
    function left(uint256 run) external view returns (uint256);

    /// @notice Pays a validator the part of its voucher not yet paid, as far as the pot and the period reach; the rest stays owed by
    /// the voucher. Anyone may call it.
    /// @param validator One that holds or held a seat, where the trainer signed; where the owner did, anybody.
    /// @param total Everything the run has ever promised this validator.
    /// @param signature The trainer's of now, or the owner's (ECDSA, or ERC-1271 of a contract) over Voucher(run, validator, total),
    /// in the EIP-712 domain of Runs. The owner's has no cap.
    function redeem(uint256 run, address validator, uint256 total, bytes calldata signature)
        external
        returns (uint256 amount);
}
