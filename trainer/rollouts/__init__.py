"""Rollouts for training.

Of a swarm, validated: data.py finds and verifies them, files.py has their files, lines.py which of a node's submissions count,
pool.py keeps the groups that are ready, share.py deals them out fairly, outlook.py says what is on its way, workforce.py what seats may
still make. Of this machine alone: local.py makes them, questions.py says
what is asked and who grades it, own_tasks.py and reward_function.py are a researcher's own rows and function. counts.py counts.
"""
