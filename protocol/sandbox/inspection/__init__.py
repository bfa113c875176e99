"""What `murmur env check` looks at: whether an environment keeps what docs/environments.md asks of it."""

from protocol.sandbox.inspection.examination import examine
from protocol.sandbox.inspection.observation import Observation

__all__ = ["Observation", "examine"]
