"""The Transformer of 2017 in plain Python, with a backward pass of its own.

Made from book/21-from-nothing.md: edit the chapter, not this file.
"""

import math
import random

__all__ = ["main"]


class Value:
    """A matrix, as a list of rows, that remembers what it was made from."""

    def __init__(self, rows, parents=(), chain=lambda grad: ()):
        self.rows, self.parents, self.chain = rows, parents, chain
        self.grad = None  # how fast the loss grows with each number

    def backward(self, grad):
        """Start from the gradient here; give every value behind this one its own."""
        order = {}  # of the values behind this one; used as a set

        def visit(value):
            if value not in order:
                for parent in value.parents:
                    visit(parent)
                order[value] = True  # after all that it was made from

        visit(self)
        self.grad = grad
        for value in reversed(order):
            for parent, part in zip(value.parents, value.chain(value.grad)):
                parent.grad = plus(parent.grad, part) if parent.grad else part


def each(function, *matrices):
    """Apply a function to the numbers that stand in the same place."""
    return [[function(*numbers) for numbers in zip(*rows)] for rows in zip(*matrices)]


def plus(a, b):
    """Add two matrices."""
    return each(lambda x, y: x + y, a, b)


def turn(a):
    """Turn columns into rows: aᵀ."""
    return list(zip(*a))


def product(a, b):
    """Multiply every row of a with every row of b: a bᵀ."""
    return [[sum([x * y for x, y in zip(row, other)]) for other in b] for row in a]


def dots(a, b):
    """Dot products of the rows of a with the rows of b: a bᵀ."""

    def chain(grad):
        return product(grad, turn(b.rows)), product(turn(grad), turn(a.rows))

    return Value(product(a.rows, b.rows), (a, b), chain)


def add(a, b):
    """Sum of a and b; a b of a single row is added to every row of a."""
    if len(a.rows) == len(b.rows):
        return Value(plus(a.rows, b.rows), (a, b), lambda grad: (grad, grad))
    rows = plus(a.rows, b.rows * len(a.rows))
    return Value(rows, (a, b), lambda grad: (grad, [[sum(g) for g in turn(grad)]]))


def scale(a, factor):
    """Every number of a, times one factor."""
    rows = each(lambda x: factor * x, a.rows)
    return Value(rows, (a,), lambda grad: [each(lambda g: factor * g, grad)])


def relu(a):
    """The positive numbers of a, and 0 in place of the others."""
    rows = each(lambda x: max(x, 0.0), a.rows)
    return Value(rows, (a,), lambda grad: [each(lambda g, x: g * (x > 0), grad, rows)])


def lookup(a, places):
    """The rows of a at these places; a row that is taken twice has two gradients."""

    def chain(grad):
        found = each(lambda x: 0.0, a.rows)
        for place, row in zip(places, grad):
            found[place] = [x + g for x, g in zip(found[place], row)]
        return [found]

    return Value([a.rows[place] for place in places], (a,), chain)


def flip(a):
    """The columns of a as rows."""
    return Value(turn(a.rows), (a,), lambda grad: [turn(grad)])


def columns(a, places):
    """The columns of a at these places."""
    return flip(lookup(flip(a), places))


def shares(scores):
    """Softmax of one row: positive numbers that sum to 1."""
    largest = max(scores)  # subtracted, or e to its power may be too large for a float
    powers = [math.exp(score - largest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def softmax(a, mask=None):
    """Softmax of each row of scores, over the places where the mask is True."""
    rows = a.rows
    if mask:
        rows = each(lambda score, may: score if may else -math.inf, rows, mask)
    weights = [shares(row) for row in rows]

    def chain(grad):
        means = [sum([w * g for w, g in zip(*rows)]) for rows in zip(weights, grad)]
        both = zip(weights, grad, means)
        return [[[w * (g - mean) for w, g in zip(*rows)] for *rows, mean in both]]

    return Value(weights, (a,), chain)


def norm(a, gain, shift):
    """Layer norm: every row with mean 0 and variance 1, times gain, plus shift."""
    rows, spreads = [], []
    for row in a.rows:
        mean = sum(row) / len(row)
        variance = sum([(x - mean) ** 2 for x in row]) / len(row)
        spreads.append(math.sqrt(variance + 1e-5))
        rows.append([(x - mean) / spreads[-1] for x in row])

    def chain(grad):
        found = []
        for row, spread, g in zip(rows, spreads, grad):
            g = [x * y for x, y in zip(g, gain.rows[0])]
            mean = sum(g) / len(g)
            along = sum([x * y for x, y in zip(g, row)]) / len(g)
            found.append([(x - mean - along * y) / spread for x, y in zip(g, row)])
        of_gain = turn(each(lambda g, x: g * x, grad, rows))
        return found, [[sum(g) for g in of_gain]], [[sum(g) for g in turn(grad)]]

    scaled = [[x * g + s for x, g, s in zip(r, *gain.rows, *shift.rows)] for r in rows]
    return Value(scaled, (a, gain, shift), chain)


D_MODEL, D_FF, HEADS, LAYERS = 16, 32, 2, 1  # the paper's base: 512, 2048, 8, 6
TABLE = "source_embedding.table.weight"


def linear(model, name, x):
    """A linear map of every row of x."""
    return add(dots(x, model[name + ".weight"]), model[name + ".bias"])


def attention(model, name, x, memory, mask=None):
    """Multi-head attention of x to memory (paper, sections 3.2.1 and 3.2.2)."""
    query = linear(model, name + "_attention.query_proj", x)
    key = linear(model, name + "_attention.key_proj", memory)
    value = linear(model, name + "_attention.value_proj", memory)
    output = model[name + "_attention.output_proj.weight"]
    change = model[name + "_attention.output_proj.bias"]
    d_k = D_MODEL // HEADS
    for start in range(0, D_MODEL, d_k):
        own = range(start, start + d_k)
        q, k, v, o = (columns(a, own) for a in (query, key, value, output))
        weights = softmax(scale(dots(q, k), 1 / math.sqrt(d_k)), mask)
        change = add(dots(dots(weights, flip(v)), o), change)
    return change


def feed_forward(model, layer, x):
    """Two linear maps with a ReLU between them (section 3.3)."""
    x = relu(linear(model, layer + ".feed_forward.expand", x))
    return linear(model, layer + ".feed_forward.contract", x)


def residual(model, layer, n, x, change):
    """Add and norm, in the paper's order (section 3.1)."""
    norms = f"{layer}.residuals.{n}.norm."
    return norm(add(x, change), model[norms + "weight"], model[norms + "bias"])


def embed(model, ids):
    """Rows of the table, plus sinusoids (sections 3.4 and 3.5)."""
    rates = [10_000 ** (-i / D_MODEL) for i in range(0, D_MODEL, 2)]
    angles = [[place * rate for rate in rates] for place in range(len(ids))]
    waves = [[wave(x) for x in row for wave in (math.sin, math.cos)] for row in angles]
    return add(scale(lookup(model[TABLE], ids), math.sqrt(D_MODEL)), Value(waves))


def encode(model, source):
    """The memory: the source's vectors after all layers of the encoder."""
    x = embed(model, source)
    for layer in [f"encoder.layers.{n}" for n in range(LAYERS)]:
        x = residual(model, layer, 0, x, attention(model, layer + ".self", x, x))
        x = residual(model, layer, 1, x, feed_forward(model, layer, x))
    return x


def decode(model, target, memory):
    """Logits: for each place of the target, a score for every next character."""
    x = embed(model, target)
    mask = [[j <= i for j in range(len(target))] for i in range(len(target))]
    for layer in [f"decoder.layers.{n}" for n in range(LAYERS)]:
        x = residual(model, layer, 0, x, attention(model, layer + ".self", x, x, mask))
        x = residual(model, layer, 1, x, attention(model, layer + ".cross", x, memory))
        x = residual(model, layer, 2, x, feed_forward(model, layer, x))
    return dots(x, model[TABLE])


def smoothed_loss(logits, labels, smoothing=0.1):
    """Cross-entropy with smoothed labels (section 5.4), summed over the labels."""
    given = [shares(row) for row in logits.rows]
    due = [[smoothing / len(row)] * len(row) for row in given]
    for row, label in zip(due, labels):
        row[label] += 1 - smoothing
    surprise = each(lambda p, share: -share * math.log(p), given, due)

    def chain(grad):
        return [each(lambda p, share: grad[0][0] * (p - share), given, due)]

    return Value([[sum(map(sum, surprise))]], (logits,), chain)


def gradients(model, pairs):
    """Leave each weight its gradient; return the mean loss of the pairs' characters."""
    count, total = sum(len(target) + 1 for _, target in pairs), 0.0
    for source, target in pairs:
        logits = decode(model, [BEGIN, *target], encode(model, source))
        loss = smoothed_loss(logits, [*target, END])
        loss.backward([[1 / count]])
        total += loss.rows[0][0] / count
    return total


def adam(model, moments, step, rate):
    """One step of Adam, with the paper's constants (section 5.3)."""
    rate, larger = rate / (1 - 0.9**step), 1 / (1 - 0.98**step)
    for name, value in model.items():
        m, v = moments.get(name) or [each(lambda x: 0.0, value.rows)] * 2
        m = each(lambda m, g: 0.9 * m + 0.1 * g, m, value.grad)
        v = each(lambda v, g: 0.98 * v + 0.02 * g * g, v, value.grad)
        steps = each(lambda m, v: rate * m / (math.sqrt(larger * v) + 1e-9), m, v)
        value.rows = each(lambda x, step: x - step, value.rows, steps)
        value.grad, moments[name] = None, (m, v)


def new_model(draw):
    """Random weights: the table from a bell curve, the linear maps as Xavier's."""
    table = [[draw.gauss(0, D_MODEL**-0.5) for _ in range(D_MODEL)] for _ in ALPHABET]
    model = {TABLE: Value(table)}

    def new(name, high, wide):
        most = math.sqrt(6 / (high + wide))
        rows = [[draw.uniform(-most, most) for _ in range(wide)] for _ in range(high)]
        model[name + ".weight"] = Value(rows)
        model[name + ".bias"] = Value([[0.0] * high])

    for stack, attentions in ("encoder", ["self"]), ("decoder", ["self", "cross"]):
        for layer in [f"{stack}.layers.{n}" for n in range(LAYERS)]:
            for kind in attentions:
                for part in "query", "key", "value", "output":
                    new(f"{layer}.{kind}_attention.{part}_proj", D_MODEL, D_MODEL)
            new(layer + ".feed_forward.expand", D_FF, D_MODEL)
            new(layer + ".feed_forward.contract", D_MODEL, D_FF)
            for n in range(len(attentions) + 1):
                model[f"{layer}.residuals.{n}.norm.weight"] = Value([[1.0] * D_MODEL])
                model[f"{layer}.residuals.{n}.norm.bias"] = Value([[0.0] * D_MODEL])
    return model


ALPHABET = "<> -0123456789abcdefghijklmnopqrstuvwxyz"
BEGIN, END, SPACE = 0, 1, 2
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()


def date(draw):
    """A date as people write it, and as ISO 8601 does."""
    day, month, year = map(draw.randint, (1, 1, 1900), (31, 12, 2099))
    return f"{day} {MONTHS[month - 1]} {year}", f"{year}-{month:02}-{day:02}"


def ids(text):
    """The number of every character; what is not in the alphabet is read as a space."""
    return [max(SPACE, ALPHABET.find(character)) for character in text.lower()]


def greedy(model, source, longest=12):
    """The most probable next character, again and again, until it is the end."""
    memory, target = encode(model, source), [BEGIN]
    while target[-1] != END and len(target) <= longest:
        scores = decode(model, target, memory).rows[-1]
        target.append(max(range(END, len(scores)), key=scores.__getitem__))
    return [i for i in target if i > END]


def translate(model, text):
    """What the model makes of a line of text."""
    return "".join(ALPHABET[i] for i in greedy(model, ids(text)))


def train(model, draw, held_out, steps=600, size=8, warmup=200):
    """Train on new dates that are not held out; yield the loss of every step."""
    dates = iter(lambda: date(draw), None)  # without an end
    new, moments = (pair for pair in dates if pair not in held_out), {}
    for step in range(1, steps + 1):
        pairs = [[ids(text) for text in next(new)] for _ in range(size)]
        loss = gradients(model, pairs)
        rate = D_MODEL**-0.5 * min(step**-0.5, step * warmup**-1.5)  # equation 3
        adam(model, moments, step, rate * min(1, 4 * (steps - step) / steps))
        yield loss


def main():
    """Train, say how it went, and translate what is typed in."""
    draw = random.Random(0)
    held_out = [date(draw) for _ in range(200)]
    model = new_model(draw)
    for step, loss in enumerate(train(model, draw, held_out), 1):
        if step % 25 == 0:
            print(f"step {step}: loss {loss:.2f}", flush=True)
    right = sum(translate(model, text) == iso for text, iso in held_out)
    print(f"{right} of {len(held_out)} dates that it never saw are right")
    try:
        while text := input("A date such as 7 jul 2017, or nothing to stop: "):
            print(translate(model, text))
    except EOFError:  # the input has ended
        print()


if __name__ == "__main__":
    main()
