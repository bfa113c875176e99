"""The way of a version of the weights, with the relay in its middle."""

from __future__ import annotations

from drawings.canvas import Canvas


def weights() -> str:
    to = Canvas(
        302,
        "The way of a version",
        "The trainer writes a version and puts its hash on chain. The origin serves chunks to relays first, each relay other ones. Relays exchange "
        "what the other lacks, and serve nodes and validators. All of them check every chunk against the hash on chain.",
    )
    to.box(
        (20, 98), (196, 106), "trainer", "Version", ("written, hashed, signed;", "its origin serves relays", "first")
    )
    to.box((352, 20), (196, 89), "relays", "Your relay", ("serves each chunk once", "it has verified"))
    to.box((352, 193), (196, 89), "relays", "Other relays", ("each begins with other", "chunks"))
    to.box((684, 20), (196, 89), "node", "Nodes", ("take from the fastest", "that do not fail"))
    to.box((684, 193), (196, 89), "validators", "Validators", ("fetch as nodes do",))
    to.arrow((216, 130), (284, 130), (284, 64), (350, 64))
    to.arrow((216, 172), (284, 172), (284, 238), (350, 238))
    to.arrow((430, 109), (430, 191))
    to.arrow((470, 193), (470, 111))
    to.text((482, 156), "what the other lacks", "quiet")
    to.arrow((548, 64), (682, 64))
    to.arrow((548, 238), (682, 238))
    to.arrow((548, 84), (640, 84), (640, 218), (682, 218))
    to.text((118, 230), "hash on chain: everybody", "quiet", "middle")
    to.text((118, 247), "checks every chunk by it", "quiet", "middle")
    return to.svg()
