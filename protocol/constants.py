"""Constants that all parties must share. Changing one is a new protocol version, never a configuration.

Each says its value, unit, source and what breaks when it changes. Anything a run may choose for itself lies in
`protocol/runspec.py`; anything a machine may choose lies in its config file.
"""

from typing import Final

PROTOCOL_VERSION: Final = 1
"""Version of every wire format together. Changing it breaks: parties of different versions no longer meet."""

EIP712_NAME: Final = "Murmuration"
"""EIP-712 domain name, the same in contracts/src/Runs.sol. Changing it breaks: every signature."""

EIP712_VERSION: Final = "1"
"""EIP-712 domain version, the same in contracts/src/Runs.sol. Changing it breaks: every signature."""

# ---- TOPLOC (arXiv 2501.16007; the format of the published package toploc 0.1.6) ----

TOPLOC_FIELD: Final = 65497
"""Order of the prime field of proofs: the largest prime whose elements fit 16 bits that toploc 0.1.6 uses.
Changing it breaks: all proofs."""

TOPLOC_CHUNK: Final = 32
"""Output tokens per proof. Changing it breaks: the number and content of all proofs."""

TOPLOC_K: Final = 128
"""Largest activations a proof remembers. Changing it breaks: the size and content of all proofs."""

TOPLOC_MODULUS_FLOOR: Final = 65000
"""Smallest modulus accepted in a proof. Honest moduli lie within a few dozen of 65497; a small one lets a forger
choose collisions. Changing it breaks: which proofs parse."""

# ---- sums over a seat's history ----

RIVALS: Final = 3
"""Next best tokens whose distance from the draw is looked at. Changing it breaks: sums of receipts."""

RIVALS_WITHIN: Final = 1.0
"""Logits: a token whose score lies further below the draw's is no rival. Changing it breaks: sums of receipts."""

SPREAD_MAX: Final = RIVALS_WITHIN / 3
"""Logits: the widest rounding of a position that margins can be compared with, for rivals beyond three times as much are not looked at. Changing it breaks:
sums of receipts."""

NOISE_MAX: Final = 0.05
"""Share of the range of a position's logits: the largest noise that a spec may name. Changing it breaks: specs that name a larger one."""

BUILD_CHARS_MAX: Final = 256
"""Characters of an engine's build. Changing it breaks: files and specs that name a longer one."""

SPREAD_OF_TEMPERATURE: Final = 1 / 8
"""At most this share of the temperature is the soft noise, in logits, of positions whose mismatches are counted by side. Above it near ties are denser on one
side of the draw than on the other, all the more the lower the temperature (at 0 all lie on one), and honest work takes sides. Changing it breaks: sums
of receipts."""

HARD_SPREAD_OF_TEMPERATURE: Final = 0.3
"""The same of the hard noise: a soft one that is far below it, as a calibration notice may make it, counts no position whose sides would convict a device within the
hard noise. Changing it breaks: sums of receipts."""

SCORE_MAX: Final = 8.0
"""Times the noise: the margins of a block count for no more in a sum. Changing it breaks: sums of receipts."""

BLOCK_TOKENS: Final = 32
"""The most tokens of a block of margins. Fewer: what follows from one and the same rounding counts more often. Changing it breaks: sums of receipts."""

SUM_UNIT: Final = 1 << 20
"""Sums are whole numbers in parts of this. Changing it breaks: sums of receipts."""

SUM_MAX: Final = 2**53 - 1
"""The most that a sum may be, in these parts: the largest number of canonical JSON. Changing it breaks: nothing below it."""

# ---- SHARDCAST ----

SHARDCAST_CHUNK_BYTES: Final = 4 << 20
"""Bytes per BLAKE3-verified chunk of a weights file. Changing it breaks: manifests of different versions."""

MANIFEST_BYTES_MAX: Final = 16 << 20
"""Cap on a manifest's JSON, enough for 500 GB of weights. Changing it breaks: nothing below the cap."""

NOTICE_BYTES_MAX: Final = 8 << 10
"""Cap on the JSON of a calibration notice in a manifest. Changing it breaks: nothing below the cap."""

# ---- messages ----

RECEIPT_BYTES_MAX: Final = 64 << 10
"""Cap on one verdict receipt's JSON. Changing it breaks: nothing below the cap."""

UPLOAD_SECONDS_MAX: Final = 300
"""Longest time from an upload's first byte to its last. One that began within the grace time counts, so nobody calls a file
missing before both are over. Changing it breaks: verdicts on files that come late."""

SAMPLES_MAX: Final = 256
"""Samples in one submission: as many as a receipt has bits for. Changing it breaks: receipts and the contracts."""

NOBODY: Final = "0x0000000000000000000000000000000000000000"
"""The address that contracts have where there is none. Changing it breaks: everything, for it is the EVM's."""

TURNS_MAX: Final = 1024
"""Turns of one sample, and tool calls. Changing it breaks: nothing below the cap."""

REPLY_CHARS_MAX: Final = 1 << 14
"""Cap on the text of one reply, in characters, and REPLY_CALLS_MAX on the tool calls it stands for: an environment that says more gives
none at all. Changing it breaks: nothing below the cap."""
REPLY_CALLS_MAX: Final = 16

SPEC_BYTES_MAX: Final = 1 << 20
"""Cap on a run spec's canonical JSON. Changing it breaks: nothing below the cap."""

HEAD_PROBLEMS: Final = 256
"""First problems of each environment that stand for all of them: in the digest that a run spec names, and where the longest prompt is
looked for. Changing it breaks: every run spec."""
HELD_OUT_LOOKS: Final = 20
"""Times the number of held-out problems: how many are drawn to find so many that differ. Changing it breaks: which are held out."""

WRITE_LIFETIME_SECONDS: Final = 300
"""Longest time a signed write to the hub may stay valid, in block time. Changing it breaks: writers with slow clocks."""

# ---- development ----

ANVIL_CHAIN_ID: Final = 31337
"""The only chain on which weak (fast) keystore encryption is allowed. Changing it breaks: the safety of keystores."""
