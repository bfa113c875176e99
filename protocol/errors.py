"""Every error this software raises on purpose, in one tree.

    MurmurationError                exit  1   something unexpected
    ├── UsageError                        2   wrong arguments, or a confirmation that nobody gave
    ├── ConfigError                       3   a config file, value or run spec is wrong
    ├── ChainError                        4
    │   ├── RpcUnavailable                    no endpoint answered in time
    │   │   ├── StaleHead                     the newest block of every endpoint is too old to be a clock
    │   │   └── ChainChanged                  an endpoint answers with another chain than before, perhaps for once
    │   ├── FeeTooHigh                        the network asks for more per gas than may be offered
    │   ├── WrongChain                        chain id or contract code differs from what was configured
    │   └── TransactionReverted               a contract said no, and why
    ├── PreflightError                    5   this machine lacks something (a program, a port, space, memory)
    │   └── DiskFailed                        a disk may have lost what it had taken
    ├── InsufficientFunds                 6   stake, tokens or gas money are missing
    ├── LockHeld                          7   another process works with the same key or folder
    ├── IntegrityError                    8   our own data does not hash to what it should
    ├── ProtocolViolation                 8   a peer sent something that breaks the rules: it is to blame
    │   ├── Malformed                         cannot be parsed, or breaks its format
    │   │   └── UnknownVersion           10   a file of a version that this program does not know
    │   ├── Oversized                         larger than its cap; refused before it was read
    │   ├── BadSignature                      the signature is not of the key it should be
    │   └── HashMismatch                      the bytes are not the ones that were promised
    ├── Banned                            9   this seat was slashed or banned
    ├── VersionMismatch                  10   the parties run incompatible software or specs
    └── Unavailable                       1   a service did not answer within its deadline; try again
        ├── DeadlineExceeded                  the wait for something took longer than it may
        ├── Retired                           nobody keeps it any more: trying again brings nothing
        └── Interrupted                       this machine broke it off: nothing that was handed over is to blame

`exit_code` is what a command ends with, `hint` the next thing a person should try. Another party is to blame for a
ProtocolViolation and for nothing else: only for that may anybody be scored down.
"""

from __future__ import annotations

from typing import ClassVar


class MurmurationError(Exception):
    """Root of the tree. `hint` may be given per error; otherwise the class's own is shown."""

    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = self.default_hint if hint is None else hint


class UsageError(MurmurationError):
    exit_code = 2
    default_hint = "see --help"


class ConfigError(MurmurationError):
    exit_code = 3


class ChainError(MurmurationError):
    exit_code = 4


class RpcUnavailable(ChainError):
    default_hint = "check the RPC address (--rpc) and that the chain is up"


class StaleHead(RpcUnavailable):
    default_hint = (
        "add another endpoint to chain.rpc; if all are late, check this machine's clock, or the chain stands still"
    )


class FeeTooHigh(ChainError):
    default_hint = "wait until gas is cheaper, or raise chain.fee_max_gwei"


class WrongChain(ChainError):
    default_hint = "check --rpc and --contract: they must belong to the same chain"


class ChainChanged(RpcUnavailable, WrongChain):
    """A running role waits: one backend of many behind a URL may have answered. Nothing of it is used."""


class TransactionReverted(ChainError):
    """`reason` is the contract's error name and `arguments` its values, both decoded from the ABI."""

    def __init__(
        self, message: str, *, reason: str = "", arguments: tuple[object, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.arguments = arguments


class PreflightError(MurmurationError):
    exit_code = 5


class DiskFailed(PreflightError):
    """Linux says so once, and memory goes on giving what the disk does not have: nothing that was written before is believed."""

    default_hint = "what is wrong with the disk is in the system's log (dmesg)"


class DiskFull(PreflightError):
    """Nothing is lost: what was to be written is not begun, or begun again. A role that ends by it may be started again: somebody may have made room."""

    exit_code = 1


class InsufficientFunds(MurmurationError):
    exit_code = 6


class LockHeld(MurmurationError):
    exit_code = 7
    default_hint = "stop the other process first; two with one key would take each other's sequence numbers"


class IntegrityError(MurmurationError):
    exit_code = 8


class ProtocolViolation(MurmurationError):
    exit_code = 8


class Malformed(ProtocolViolation):
    pass


class UnknownVersion(Malformed):
    """A stranger's file, so that no role ends for it; a person who reads one is told to upgrade."""

    exit_code = 10
    default_hint = "upgrade murmuration: a later version of it may read this file"


class Oversized(ProtocolViolation):
    pass


class BadSignature(ProtocolViolation):
    pass


class HashMismatch(ProtocolViolation):
    pass


class Banned(MurmurationError):
    exit_code = 9


class VersionMismatch(MurmurationError):
    exit_code = 10


class Unavailable(MurmurationError):
    default_hint = "try again; if it stays so, check that the other side runs"


class DeadlineExceeded(Unavailable):
    pass


class Retired(Unavailable):
    default_hint = "nothing brings it back; go on with what is newer"


class Interrupted(Unavailable):
    default_hint = "try again; if it stays so, look for what ends processes here, as the kernel does for want of memory"
