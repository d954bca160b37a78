# %% claim: After 100 steps
# null: a constant share of 0.999
kept_share = lambda step, decay: decay

# %% claim: Divided by all labels
# null: divided by each shard's own
by_all = own

# null: the divisor makes no difference
own = by_all

# %% claim: The plain loop and
# null: dropout is that of other steps
plain_by_step = plain_training


def plain_training(*arguments):
    train_step = TrainingState.train_step
    TrainingState.train_step = lambda self, examples, step, rate: train_step(
        self, examples, step + 1000, rate
    )
    losses = plain_by_step(*arguments)
    TrainingState.train_step = train_step
    return losses


# null: the last weights, not the best average
TrainingState.give_best_weights, give = (
    lambda self: None,
    TrainingState.give_best_weights,
)
train_as_it_is = train_translator


def train_translator(*arguments):
    TrainingState.give_best_weights = give
    yield from train_as_it_is(*arguments)
    TrainingState.give_best_weights = lambda self: None


# null: the seed makes no difference
replaced = replace
replace = lambda config, seed=None, **changes: replaced(config, **changes)

# %% claim: All three runs end
# null: a run that was left half-way counts too
newest_of = newest
newest = lambda name: newest_of("whole" if name == "left" else name)

# null: taken up with a new Adam
torch.optim.Adam.load_state_dict = lambda self, state: None
runs = runs / "null"
whole = run("whole")
run("cut", 9)
again = run("cut")

# null: the damaged state is taken up
older = again

# %% claim: After the same thirty steps
# null: the loss is taken after the update
anew = [*anew[:30], *anew[31:], anew[-1]]

# null: nothing is thrown away
anew = kept

# null: behind no more than the steps are noisy
anew = [*kept[:31], *sorted(kept[31:])]

# null: the first moment is what matters
half = anew

# %% claim: Tiny has 2.57 million
# null: no table is shared
with_tie = translation_model
translation_model = lambda types, sizes: with_tie(
    types, {**sizes, "tie_embeddings": False}
)

# null: a vocabulary of a tenth
PRESETS["tiny"] = PRESETS["tiny"]._replace(vocab_size=PRESETS["tiny"].vocab_size // 10)

# %% claim: The language model's run that was cut short ends in the
# null: a run that is left after ten steps and not taken up again
runs = Path(tempfile.mkdtemp())
text_run("text-whole")
text_run("text-cut", 10)

# null: the run of another seed in place of the one cut short
runs = Path(tempfile.mkdtemp())
text_run("text-whole")
text_run("text-cut", seed=2)

# null: an untrained model
best = TextGenerator(
    language_model(text.tokenizer.vocab_size, text_sizes), text.tokenizer
)
in_one_go[-1] = in_one_go[-1]._replace(
    validation_loss=text_loss(best.model, text.validation)
)

# %% claim: After the same thirty steps
# null: the jump is the first step's: left out, there is none
no_first_step = kept

# null: warm-up does not help
warmed_up = anew
