# %% claim: The first of the two scores
# null: a chain without the mean: weight times gradient
scores.grad = [[0.75 * 2, 0.25 * -2]]

# null: the query takes both keys alike
query.grad = [[0.5 * math.log(3)]]

# %% claim: The first 15 losses
# null: another seed
draw = random.Random(1)
training = train(new_model(draw), draw, held_out)
losses = [next(training) for _ in range(15)]

# null: a model that learned nothing
stored["losses"] = stored["losses"][:15]

# %% claim: Of the held-out dates
# null: chance: none of 74,400 dates
stored["right"] = 0

# null: an untrained model
model = new_model(random.Random(0))

# %% claim: Logits, loss, gradients and Adam's step
# null: scores that are not scaled
scale_of = scale
scale = lambda a, factor: a if factor < 1 else scale_of(a, factor)

# null: a softmax that forgets the mean on the way back
softmax_of = softmax
softmax = lambda a, mask=None: Value(
    softmax_of(a, mask).rows,
    (a,),
    lambda grad: [each(lambda w, g: w * g, softmax_of(a, mask).rows, grad)],
)

# null: a character that comes twice counts once
lookup = lambda a, places: Value(
    [a.rows[place] for place in places],
    (a,),
    lambda grad: [
        [
            dict(zip(places, grad)).get(place, [0.0] * len(row))
            for place, row in enumerate(a.rows)
        ]
    ],
)

# null: labels that are not smoothed
loss_of = smoothed_loss
smoothed_loss = lambda logits, labels: loss_of(logits, labels, 0.0)

# null: Adam without its corrections
adam_of = adam
adam = lambda model, moments, step, rate: adam_of(model, moments, 10_000, rate)

# %% claim: In each of the 43 weight matrices
# null: a gradient that is half as large
poured_of = poured
gradients_of = gradients
gradients = lambda model, pairs: (
    gradients_of(model, [*pairs, *pairs[:1]])
    and [setattr(v, "grad", each(lambda g: g / 2, v.grad)) for v in model.values()]
)

# null: a norm whose chain leaves out what runs along the row
norm_of = norm
norm = lambda a, gain, shift: Value(
    norm_of(a, gain, shift).rows,
    (a, gain, shift),
    lambda grad: (grad, *norm_of(a, gain, shift).chain(grad)[1:]),
)

# %% claim: If the seventh character
# null: no mask
softmax_of = softmax
softmax = lambda a, mask=None: softmax_of(a)

# null: a decoder that sees one character ahead
each_of = each
attention_of = attention
attention = lambda model, name, x, memory, mask=None: attention_of(
    model,
    name,
    x,
    memory,
    mask and [[j <= i + 1 for j in range(len(mask))] for i in range(len(mask))],
)

# %% claim: From the trained weights
# null: a page without positions
embed = lambda model, ids: scale(lookup(model[TABLE], ids), math.sqrt(D_MODEL))

# null: an untrained page
held_out = [date(random.Random(n)) for n in range(10)]
model_of = greedy
greedy = lambda model, source: model_of(new_model(random.Random(0)), source)

# %% claim: The way back takes exactly two
# null: only one of the two products
back = there

# null: nothing goes back
back = 0
