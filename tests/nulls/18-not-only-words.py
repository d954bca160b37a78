# %% claim: From both sides it is
# null: the encoder for both sides has a causal mask too
fillers["both sides"].causal = True

# null: the language model sees what stands behind
fillers["left"].causal = False

# null: the word behind is hidden as well
fill_one = with_hole


def with_hole(ids, places):
    inputs, labels = fill_one(ids, places)
    return fill_one(inputs, places + 1)[0], labels


bits_a_word = lambda: (0, 1)

# null: a word costs the same from both
bits_a_word = lambda: (3.0, 3.0)

# %% claim: Looking up a row
# null: the one stands a place further on
draw_one_hot = F.one_hot
F.one_hot = lambda ids, count: draw_one_hot((ids + 1) % count, count)

# %% claim: No training window changes
# null: the scale is that of the whole series


def split(values, first, end):
    first, end = first - 1700, end - 1700
    scaled = (values[:end] - values.mean()) / values.std()
    return windows(scaled[:first]), windows(scaled[first - history :])


# null: the histories end before 1900, and what they are to forecast does not


def split(values, first, end):
    first, end = first - 1700, end - 1700
    scaled = (values[:end] - values[:first].mean()) / values[:first].std()
    return windows(scaled[: first + horizon]), windows(scaled[first - history :])


# %% claim: For an error of 20
# null: the squared error, whatever the deviation
forecast_loss = lambda forecast, actual: (actual - forecast.mean).square().mean()

# null: the logarithm of the variance in place of the deviation's


def forecast_loss(forecast, actual):
    errors = (actual - forecast.mean) / forecast.std
    return (errors.square() / 2 + 2 * forecast.std.log()).mean()


# %% claim: With the same weights, the package
# null: the mean over the patches is read, not the last
PlainForecaster.forward = lambda self, history: (
    self.output(
        self.encoder(self.position(self.embedding(history.unflatten(1, (-1, 4))))).mean(
            dim=1
        )
    )
    .exp()
    .chunk(2, dim=-1)
)

# null: the last patch is all that is read
PlainForecaster.forward = Forecaster.forward = lambda self, history: Forecast(
    *self.output(self.embedding(history[:, -4:])).chunk(2, dim=-1)
)

# %% claim: Scaled by window, a forecast
# null: the forecast is not scaled back
ScaledByWindow.forward = lambda self, history: self.forecaster(
    (history - history.mean(1, keepdim=True)) / history.std(1, keepdim=True)
)

# null: the windows are not scaled
ScaledByWindow.forward = lambda self, history: self.forecaster(history)

# %% claim: With its windows scaled, the encoder
# null: the scaling changes nothing
errors["encoder, scaled"] = errors["encoder"]
by_cycle["encoder, scaled"] = by_cycle["encoder"]

# null: the scaling brings what it does in either
errors["encoder"] = errors["encoder, scaled"]

# null: the autoregression is an encoder without the scaling
errors["autoregression"] = errors["encoder"][:1]

# null: the encoders forecast the mean
errors["encoder"] = errors["mean"].expand(3, -1, -1)

# null: the autoregression is ahead in half of the groups
wins["encoder"] = 5

# null: with the scaling it is as far ahead in all groups
by_cycle["encoder, scaled"] = by_cycle["autoregression"] + 0.5

# %% claim: Without scaling, 80% intervals
# null: without scaling they hold what they should
held["encoder"] = torch.full_like(held["encoder"], 0.8)

# null: the autoregression's are as narrow as the encoder's
held["autoregression"] = held["encoder"]

# null: the scaling changes none
held["encoder, scaled"] = held["encoder"]

# null: the coverage is the same in all years
held["encoder"] = held["encoder"].roll(50, 1)

# %% claim: From 1944 on the scaling
# null: the years in another order
series = series[torch.randperm(len(series))]

# null: the later cycles are as high as the earlier ones
series = torch.cat((series[:244], series[100:165]))

# null: the lead is the same in all years
lead = errors["encoder"].mean() - errors["autoregression"].mean()
errors["encoder"] = errors["autoregression"].expand(3, -1, -1) + lead

# null: the scaling brings nothing
errors["encoder, scaled"] = errors["encoder"]

# null: the loss before 1900 is the same with it
tried["encoder, scaled"] = tried["encoder"]

# %% claim: One shuffle for all costs
# null: one shuffle for all costs what a shuffle for each does
right_share["one shuffle for all"] = right_share["a shuffle for each"]

# null: after a shuffle for each nothing is left but chance
right_share["a shuffle for each"] = [0.1] * 3

# null: a rival is no better than the mean encoder
right_share["logistic regression"] = [np.mean(right_share["as they are"])]

# %% claim: With its table shuffled
# null: the table is shuffled the other way round
once = once.argsort()

# null: all rows of its table are one
with torch.no_grad():
    rows_of_table = classifiers["as they are"][0].position.table.weight
    rows_of_table[:] = rows_of_table[0].clone()

# null: the blind model has positions
copy.deepcopy = lambda model: classifiers["one shuffle for all"][0]
nn.Identity = lambda: classifiers["one shuffle for all"][0].position

# %% claim: After 3,000 steps
# null: longer training changes nothing
longer = {key: longer[300, key[1]] for key in longer}

# null: the neighbour is no better than logistic regression
right_share["nearest neighbour"] = right_share["logistic regression"]

# %% claim: In these models the most attended
# null: the attention is what matters
agree["most attended, layer 2"] = [1.0] * 3

# null: ink is no better than chance
agree["most ink"] = [chance] * 3
