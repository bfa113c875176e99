"""How often a role looks at the chain where nobody says it."""

from __future__ import annotations

import pytest

from protocol.chain.settings import ChainSettings


@pytest.mark.parametrize(("chain_id", "seconds"), [(8_453, 15.0), (84_532, 15.0), (31_337, 1.0), ("31337", 1.0)])
def test_only_a_development_chain_is_looked_at_every_second(chain_id: object, seconds: float) -> None:
    given = {"contract": "0x", "chain_id": chain_id, "run": 1}
    assert ChainSettings.model_validate(given).poll_seconds == seconds
    assert ChainSettings.model_validate(given | {"poll_seconds": 3}).poll_seconds == 3
