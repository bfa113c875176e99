"""What an optimizer step computes. Knows neither the loop nor the hub.

learner.py     model, optimizer, steps        loss.py        the losses (their names: trainer/recipes.py)
advantage.py   rewards → advantages           logprobs.py    log-probabilities, in chunks
packing.py     samples → rows                 attention.py   masks of packed rows
scorer.py      the model, called in one place kernels.py     quicker layers
soft_cap.py    caps on attention scores routers.py     which choose experts in float32
ranks.py       processes that train together  tensors.py     named tensors on disk, by shards
checkpoint.py  what a resumed run needs       randomness.py  torch's own random numbers
snapshot.py    a bf16 copy, to be published   loading.py   the model, each rank its part
optimizer.py   AdamW, on device or host       lora.py    adapters, trained in place of weights
gradients.py   in little memory               heap.py        what was freed, given back
self_check.py  packed rows against the plain model               base.py   the policy before training, by its digest
"""
