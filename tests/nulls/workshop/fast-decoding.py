# %% claim: Thirty-two sentences at a time
# null: time in proportion to the rows
plain_times = [rows * plain_times[0] for rows in row_counts]

# %% claim: The packed product gives
# null: the maps exchanged
query, key = key, query

# %% claim: The packed product gives
# null: both halves alike
key = query

# %% claim: On the shipped model and 100
# null: queries are not scaled
pack = PackedLinear.pack
PackedLinear.pack = lambda *maps, first=1.0: pack(*maps)

# %% claim: On the shipped model and 100
# null: the rows of the past are not exchanged
reorder = FastState.reorder
FastState.reorder = lambda self, rows: reorder(self, rows.sort().values)

# %% claim: With one sentence the fast step
# null: packing makes no difference
fast_times = plain_times

# %% claim: With one sentence the fast step
# null: reordering copies the past
reorders = {(name, at): reorders["plain", at] for name, at in reorders}

# %% claim: For 32 and 128 rows of
# null: stretches save nothing
took = {case: [usual] * 2 for case, (usual, _) in took.items()}

# %% claim: For 32 and 128 rows of
# null: a place is found as quickly as a value
values = {case: took["largest", *case][0] for case in values}

# %% claim: For 32 and 128 rows of
# null: stretches save as much for one row
for what in ways:
    took[what, 10_000, 1] = took[what, 10_000, 128]

# %% claim: For 32 and 128 rows of
# null: the last stretch, which is shorter, is left out
candidates = _candidates
_candidates = lambda logits, count: candidates(logits, count)[:, : count * _WIDTH]

# %% claim: For 32 and 128 rows of
# null: of equals any
argmax = lambda logits: logits.size(1) - 1 - logits.flip(1).argmax(dim=-1)

# %% claim: For 32 and 128 rows of
# null: the stretches with the least numbers are searched
candidates = _candidates
_candidates = lambda logits, count: candidates(-logits, count)

# %% claim: A hook on a linear map
# null: packed whatever the modules are
FastDecoder.prefill.__globals__["packable_weights"] = lambda model: [
    model.output.weight
]

# %% claim: A hook on a linear map
# null: nothing is packed, so that nothing would have been passed over
FastDecoder.prefill = lambda self, *arguments: CachedDecoder(self.model).prefill(
    *arguments
)

# %% claim: A hook on a linear map
# null: no forward pass is refused
import transformer.decoding.step

transformer.decoding.step.require_cacheable = lambda model: None

# %% claim: After a weight has been changed
# null: packed once
pack_weights = FastDecoder._pack
packed = set()


def pack_once(self, weights):
    if id(self) not in packed:
        packed.add(id(self))
        pack_weights(self, weights)


FastDecoder._pack = pack_once

# %% claim: After a weight has been changed
# null: every number is compared: packed at each search
pack_weights = FastDecoder._pack


def pack_always(self, weights):
    self._versions = []
    pack_weights(self, weights)


FastDecoder._pack = pack_always

# %% claim: After a weight has been changed
# null: the changes make no difference
nn.Parameter.mul_ = lambda weight, number: weight

# %% claim: On one thread and at 64
# null: all at our rate
rates_of = rates
rates = lambda *stored, **case: dict.fromkeys(
    rates_of(*stored, **case), rates_of(*stored, **case)["ours"]
)

# %% claim: On one thread and at 64
# null: the packed step brings nothing
rates_of = rates
rates = lambda *stored, **case: {
    **rates_of(*stored, **case),
    "ours": rates_of(*stored, **case)["chapter 13"],
}

# %% claim: From 16 to 256 tokens
# null: one rate for every length
rates_of = rates
rates = lambda *stored, length, **case: rates_of(*stored, length=16, **case)

# %% claim: From 16 to 256 tokens
# null: every decoder falls as the one without a cache does
fall_of = "torch.nn.Transformer"
rates_of = rates
rates = lambda *stored, **case: {
    **rates_of(*stored, **case),
    "ours": rates_of(*stored, length=case["length"], batch=1, beams=1, threads=1)[
        fall_of
    ],
}

# %% claim: Beside PyTorch's products the
# null: all three take the same time
for run in products.values():
    for who in run["microseconds"]:
        run["microseconds"][who] = run["microseconds"]["PyTorch"]

# %% claim: Beside PyTorch's products the
# null: the loops are as fast for many rows as for few
for run in products.values():
    run["microseconds"]["the compiler"] = [
        each * 0.45 for each in run["microseconds"]["PyTorch"]
    ]

# %% claim: Beside PyTorch's products the
# null: Intel's run is AMD's
products["Intel"] = products["AMD"]

# %% claim: Beside PyTorch's products the
# null: oneDNN is as fast as PyTorch's products
for run in products.values():
    run["microseconds"]["oneDNN"] = run["microseconds"]["PyTorch"]

# %% claim: Beside PyTorch's products the
# null: what holds for one row holds for many
newer = products["newer AMD"]["microseconds"]
newer["oneDNN"] = [each * 4 for each in newer["PyTorch"]]

# %% claim: In the medians of all runs but the last the compiled
# null: the compiled step brings nothing over the packed one
for run in decoding["runs"]:
    run["compiled_ahead"] = {**run["ahead"], "ours": {"median": 1.0, "low": 1.0}}

# %% claim: In the medians of all runs but the last the compiled
# null: other words
decoding["runs"][0]["same_words"] = False

# %% claim: In the medians of all runs but the last the compiled
# null: as fast as CTranslate2 for one sentence
for run in decoding["runs"]:
    run["compiled_ahead"]["CTranslate2"]["median"] = 1.0

# %% claim: In the medians of all runs but the last the compiled
# null: level with MarianMT for thirty-two
for run in decoding["runs"]:
    if run["batch"] == 32:
        run["compiled_ahead"]["MarianMT"]["median"] = 1.0

# %% claim: In the medians of all runs but the last the compiled
# null: level with MarianMT in the newest run
for run in newest["runs"]:
    run["compiled_ahead"]["MarianMT"]["median"] = 1.0

# %% claim: In the medians of all runs but the last the compiled
# null: level with MarianMT on the Intel processor
for run in intels["runs"]:
    run["compiled_ahead"]["MarianMT"]["median"] = 1.0

# %% claim: Sampling on one thread
# null: level with MarianMT
for run in sampling["runs"]:
    run["ahead"]["MarianMT"]["median"] = 1.0

# %% claim: Sampling on one thread
# null: compiling brings nothing
for run in sampling_second["runs"]:
    run["compiled_ahead"] = run["ahead"]

# %% claim: Sampling on one thread
# null: half as fast as CTranslate2 in every case
for run in sampling["runs"]:
    run["compiled_ahead"]["CTranslate2"]["median"] = 0.5
