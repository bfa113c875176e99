"""The training loop: a step from rollouts to the next version of the weights.

training.py    what every training does      background.py  jobs beside it    followers.py  what rank 0 has the other ranks do
train.py       with a swarm's rollouts       solo.py        with this machine's own, in a folder that prepare.py makes
repetition.py  how often the same weights become another version
"""
