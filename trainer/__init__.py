"""The researcher's side: the hub that collects rollouts and the trainer that learns from the validated ones."""
