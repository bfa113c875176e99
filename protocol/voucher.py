"""A voucher as the hub serves it: what the run has promised a validator in all, signed by the run's trainer.

Public, since it pays nobody but the validator it names. What is owed for: trainer/hub/vouchers.py; how it is paid: `Vouchers.redeem`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eth_utils import is_checksum_address

from protocol.errors import Malformed
from protocol.identity import Key
from protocol.signing import Domain, Voucher, signature_of


@dataclass(frozen=True)
class SignedVoucher:
    voucher: Voucher
    signature: bytes

    @classmethod
    def issue(cls, voucher: Voucher, key: Key, domain: Domain) -> SignedVoucher:
        return cls(voucher, voucher.sign(key, domain))

    def as_json(self) -> dict[str, Any]:
        """`total` as decimal text: it may be more than JSON readers count exactly."""
        v = self.voucher
        return {"run": v.run, "validator": v.validator, "total": str(v.total), "signature": self.signature.hex()}

    @classmethod
    def parse(cls, value: Any, domain: Domain, run: int, validator: str, trainer: str) -> SignedVoucher:
        """Raises Malformed or BadSignature unless `trainer` signed exactly this for this run and validator."""
        if not isinstance(value, dict) or set(value) != {"run", "validator", "total", "signature"}:
            raise Malformed("no voucher")
        total = value["total"]
        if (value["run"], value["validator"]) != (run, validator) or not is_checksum_address(validator):
            raise Malformed("the voucher is of another run or validator")
        if not isinstance(total, str) or not (total.isascii() and total.isdecimal()) or len(total) > 78:
            raise Malformed("the voucher's total is no amount")
        voucher, signed = Voucher(run, validator, int(total)), signature_of(value["signature"], "the voucher")
        if voucher.total >= 1 << 256:
            raise Malformed("the voucher's total is out of range")
        voucher.require(signed, domain, trainer, "voucher")  # type: ignore[arg-type]
        return cls(voucher, signed)
