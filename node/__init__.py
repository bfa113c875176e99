"""The contributor's side: the worker that generates and proves rollouts, the validator that judges them, the relay."""
