# %% claim: PyTorch accepts all five
# null: the mask is boolean
weights = F.scaled_dot_product_attention(query, key, value, hide_last)

# %% claim: PyTorch accepts all five
# null: as many keys as values
moved = torch.tensor(0.0)

# %% claim: PyTorch accepts all five
# null: the fused kernel in place of the plain one
sdpa_kernel = lambda backend: torch.no_grad()

# %% claim: PyTorch accepts all five
# null: weights loaded under their own names
fresh.load_state_dict(other.state_dict())

# %% claim: Every one of these mistakes
# null: nothing is refused
refused = [(named, None) for named, _ in refused]

# %% claim: Every one of these mistakes
# null: everything is refused
refusal = lambda check, *arguments, **named: "no"

# %% claim: Every one of these mistakes
# null: each is refused in the words of another
refused = [(refused[i - 1][0], message) for i, (_, message) in enumerate(refused)]

# %% claim: A check that always looks
# null: looking does no harm
survived["always looks"] = survived["ours"]

# %% claim: A check that always looks
# null: ours never looks
require_ids = lambda ids, vocab_size: None

# %% claim: The whole model refuses an id
# null: ids are not checked
# raises: IndexError
import transformer.model

transformer.model.require_ids = lambda *arguments: None

# %% claim: The whole model refuses an id
# null: another model is compiled
compile_whole = torch.compile
torch.compile = lambda model, **options: compile_whole(
    Transformer(model.config).eval(), **options
)
