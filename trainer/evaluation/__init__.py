"""How good a policy is: evaluate.py on held-out problems, suites.py on imported benchmarks, comparison.py of two policies, filter.py of
training problems, which journal.py lets go on after a kill; passes.py computes pass@k, and probe.py makes the reference that other
machines are held to."""
