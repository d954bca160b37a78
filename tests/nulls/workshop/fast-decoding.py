# %% claim: Thirty-two sentences at a time
# null: time in proportion to the rows
plain_times = [rows * plain_times[0] for rows in row_counts]

# %% claim: The packed product gives
# null: the maps exchanged
query, key = key, query

# null: both halves alike
key = query

# %% claim: On 101 sentences all three
# null: queries are not scaled
pack = PackedLinear.pack
PackedLinear.pack = lambda *layers, scale_first=1.0: pack(*layers)

# null: the rows of the past are not exchanged
reorder = FastState.reorder
FastState.reorder = lambda self, rows: reorder(self, rows.sort().values)

# %% claim: With one sentence the fast step
# null: packing makes no difference
fast_times = plain_times

# null: reordering copies the past
reorders = {(name, at): reorders["plain", at] for name, at in reorders}

# %% claim: A hook, a replaced
# null: packed whatever the modules are
packable = lambda model: True
has_hooks = lambda model: False

# null: nothing is packed, so that nothing would have been passed over
FastDecoder.prefill = lambda self, *arguments: CachedDecoder(self.model).prefill(
    *arguments
)

# null: no forward pass is refused
import transformer.decoding.step

transformer.decoding.step.require_cacheable = lambda model: None

# %% claim: For one sentence the packed step is at least twice
# null: the packed step is the plain one
rates_of = rates
rates = lambda *case: {
    **rates_of(*case),
    "ours": rates_of(*case).get("chapter 13", 0.0),
}

# null: the compiled step brings nothing
rates_of = rates
rates = lambda *case: {**rates_of(*case), "compiled": rates_of(*case)["ours"]}
