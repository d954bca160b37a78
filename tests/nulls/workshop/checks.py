# %% claim: PyTorch accepts all five
# null: the mask is boolean
weights = F.scaled_dot_product_attention(query, key, value, hide_last)

# null: as many keys as values
moved = torch.tensor(0.0)

# null: the fused kernel in place of the plain one
sdpa_kernel = lambda backend: torch.no_grad()

# null: weights loaded under their own names
fresh.load_state_dict(other.state_dict())

# %% claim: A check that always looks
# null: looking does no harm
survived["always looks"] = survived["ours"]

# null: ours never looks
require_ids = lambda ids, vocab_size: None
