"""What `murmur bootnode doctor` looks at: what all roles do on their machine (role_checks.py), what it announces, and its network.

A bootnode belongs to no run and to no chain, and the first of a network has nobody to go to.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from protocol.errors import ConfigError, Malformed, Unavailable
from protocol.shell import remedy
from protocol.shell.checkup import Answer, Check, NotChecked
from protocol.shell.role_checks import LOCAL, LOOK_SECONDS, require_readable
from protocol.shell.role_subject import OwnPort, RoleSubject, of_peers

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.shell.peers import BootnodeSettings


class BootnodeSubject(RoleSubject):
    def _read(self) -> Any:
        from protocol.settings import load
        from protocol.shell.peers import BootnodeSettings

        return load(BootnodeSettings, self.place.require_config()).value

    @property
    def own(self) -> BootnodeSettings:
        """Raises ConfigError."""
        return cast("BootnodeSettings", self.settings)

    @property
    def needs_hub(self) -> bool:
        return False

    @property
    def plays_environments(self) -> bool:
        return False

    @property
    def weights(self) -> Path | None:
        return None

    @property
    def locks(self) -> dict[Path, str]:
        return {self.place.lock_file: str(self.place.path)}

    @property
    def urls(self) -> Iterable[str]:
        return ()

    @property
    def chain(self) -> Chain:
        raise ConfigError("a bootnode has no chain")

    @property
    def listeners(self) -> list[OwnPort]:
        found = of_peers(self.own.listen, "listen")
        metrics = self.own.metrics
        return [*found, OwnPort("metrics.port", metrics.host, metrics.port)] if metrics.port else found


def look_at_settings(s: BootnodeSubject) -> Answer:
    require_readable(s.config)
    own = s.own
    others = f", {len(own.bootnodes)} other bootnode{'s' * (len(own.bootnodes) != 1)}" if own.bootnodes else ""
    return f"{s.config}: listens on {own.listen}{others}"


def look_at_announce(s: BootnodeSubject) -> Answer:
    """What others put into their settings must be an address that can be dialled."""
    from protocol.p2p.address import Address
    from protocol.p2p.host import read_addresses

    own = s.own
    read_addresses(own.listen, own.bootnodes, own.announce)
    if own.announce:
        return ", ".join(own.announce)
    try:
        place = Address.parse(own.listen)
    except Malformed as error:
        raise ConfigError(f"listen: {error}", hint=f"write it as /ip4/0.0.0.0/tcp/4001 in {s.config}") from error
    if place.is_dialable:
        return f"{own.listen}, where it listens"
    return (
        f"nothing, and others cannot dial {own.listen}",
        remedy.of_nothing_announced(place.port, s.config, is_running=s.is_running),
    )


def look_at_network(s: BootnodeSubject) -> Answer:
    """As `murmur net status` does: other bootnodes that are set; and of one that runs, whether it answers where it says that it is."""
    from protocol.shell import diagnosis, reachability, standpoint

    if not s.own.bootnodes and not s.is_running:
        return NotChecked("it does not run, and knows no other bootnode")
    found = reachability.look(standpoint.find(s.standpoint), seconds=LOOK_SECONDS)
    diagnosis.judge_network(found)
    answering = [way for way in found.ways if not way.problem and way.what != "this role"]
    others = f"{len(answering)} of {len(s.own.bootnodes)} other bootnodes answer" if s.own.bootnodes else ""
    says = "it answers where it says that it is" if found.announced and not found.problems else ""
    if not found.problems:
        return "; ".join(part for part in (others, says) if part) or "nobody has come yet"
    what, hint = found.problems[0]
    if s.is_running:
        raise Unavailable(what, hint=hint)
    return what, hint


CHECKS: tuple[Check[BootnodeSubject], ...] = (
    *(
        Check("settings", look_at_settings, ("home",), starts=True) if check.name == "settings" else check
        for check in LOCAL
    ),
    Check("announce", look_at_announce, ("settings",)),
    Check("network", look_at_network, ("announce",), seconds=60),
)
