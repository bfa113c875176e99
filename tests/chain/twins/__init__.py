"""The reference model (tests/chain/model) and the deployed contracts side by side: every action is tried on both, every book compared.

| module | one idea |
|---|---|
| `people` | who there is, and the policies of three runs |
| `wire` | plain JSON-RPC to Anvil, which signs for everybody: thousands of actions take seconds |
| `comparison` | every value that the contracts keep, and what the model says it is |
| `actions` | what people do, to both |

Each action is mined in a block of its own, at a time that is chosen, so that the same actions always do the same.
"""

from tests.chain.twins.actions import Twins
from tests.chain.twins.comparison import Disagreement

__all__ = ["Disagreement", "Twins"]
