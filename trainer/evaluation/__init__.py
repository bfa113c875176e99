"""How good a policy is: evaluate.py on held-out problems, comparison.py of two policies, filter.py of training problems; probe.py makes
the reference that other machines are held to."""
