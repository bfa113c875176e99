"""The training loop: a step from rollouts to the next version of the weights.

train.py  the loop    background.py  jobs beside it    followers.py  what rank 0 has the other ranks do
"""
