"""The causes that an examination can name: stable words, each with its sentence.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Cause", "CAUSES"]


@dataclass(frozen=True)
class Cause:
    """What is wrong, in a sentence; the chapter that explains it; how grave it is."""

    sentence: str
    chapter: str
    level: Literal["bug", "look"] = "bug"


CAUSES = {
    # it runs
    "one-length-only": Cause(
        "It runs at one length alone: a length is written into the code.",
        "06-positional",
    ),
    "byte-mask": Cause(
        "A mask of bytes: today's torch refuses it, and wants booleans. (What follows "
        "was found with booleans in their place.)",
        "08-masks",
    ),
    "lengths-must-agree": Cause(
        "It runs only where source and target have the same length: cross-attention "
        "may be given the target's mask.",
        "09-decoder",
    ),
    "batch-of-one-fails": Cause("A batch of one sentence fails.", "11-data"),
    "not-finite": Cause("Ordinary sentences give NaN or infinity.", "04-attention"),
    "dropout-in-eval": Cause(
        "Two runs in evaluation mode differ: dropout stays on (functional dropout or "
        "scaled_dot_product_attention without self.training, or an nn.Dropout made in "
        "forward).",
        "07-encoder",
    ),
    # the future
    "future-leak-no-mask": Cause(
        "No causal mask reaches the self-attention over the {what}.", "08-masks"
    ),
    "future-leak-inverted": Cause(
        "The causal mask is inverted: each position attends to the future, not to the "
        "past.",
        "08-masks",
    ),
    "future-leak-off-by-one": Cause(
        "The causal mask is off by one: each position sees the token that it should "
        "predict.",
        "08-masks",
    ),
    "self-hidden": Cause(
        "The causal mask is off by one: each position is hidden from itself, and the "
        "first may attend to nothing.",
        "08-masks",
    ),
    "causal-mask-too-strict": Cause(
        "The mask hides part of the past: output {place} never attends to token "
        "{token}.",
        "08-masks",
    ),
    "future-leak-encoder-reads-target": Cause(
        "The self-attention over the target is causal; something else reads the target "
        "without a mask (is the encoder given the target?).",
        "09-decoder",
    ),
    "future-leak-some-layers": Cause(
        "The causal mask reaches some layers only: {layers} has none.", "08-masks"
    ),
    "future-leak-train-only": Cause(
        "In training mode later tokens are visible, in evaluation mode they are not.",
        "08-masks",
    ),
    "future-leak-eval-only": Cause(
        "In evaluation mode later tokens are visible, in training mode they are not.",
        "08-masks",
    ),
    "future-leak-with-padding": Cause(
        "The causal mask is lost where there is padding: the padding mask replaces it, "
        "or the two are joined with or.",
        "08-masks",
    ),
    "future-leak": Cause("An output depends on later tokens.", "08-masks"),
    # what a mask does
    "mask-after-softmax": Cause(
        "The mask is applied after the softmax: hidden keys are still in its sum.",
        "08-masks",
    ),
    "mask-multiplied": Cause(
        "The scores are multiplied by the mask before the softmax: a score of 0 is not "
        "hidden, its key keeps a weight.",
        "08-masks",
    ),
    "mask-added": Cause(
        "A mask of zeros and ones is added to the scores: that hides nothing.",
        "08-masks",
    ),
    "mask-dropped": Cause(
        "Masked scores are computed and thrown away: masked_fill returns its "
        "result, it does not change the scores.",
        "08-masks",
    ),
    "mask-too-weak": Cause(
        "The mask puts {value:g} on hidden scores: too little, hidden keys keep some "
        "weight.",
        "08-masks",
    ),
    "mask-not-minus": Cause(
        "The mask puts {value:g} on hidden scores: that is an ordinary score, it "
        "should be minus infinity.",
        "08-masks",
    ),
    "mask-can-be-unlearned": Cause(
        "The mask puts {value:g} on hidden scores: large weights can learn to see past "
        "it.",
        "08-masks",
        "look",
    ),
    "mask-overflows-half": Cause(
        "The mask's {value:g} does not fit in float16: torch.finfo(dtype).min or "
        "minus infinity does.",
        "08-masks",
        "look",
    ),
    "empty-row": Cause(
        "A source of padding alone gives NaN: softmax over a row that is hidden whole.",
        "08-masks",
        "look",
    ),
    # padding
    "padding-unmasked": Cause("No mask hides the source's padding.", "08-masks"),
    "padding-encoder-unmasked": Cause(
        "The encoder gets no padding mask; cross-attention does.", "08-masks"
    ),
    "padding-cross-unmasked": Cause(
        "Cross-attention gets no padding mask for the source; the encoder does.",
        "09-decoder",
    ),
    "padding-late": Cause(
        "The padding mask starts one place late: the first padding is visible.",
        "08-masks",
    ),
    "padding-inverted": Cause(
        "The padding mask is inverted: words are hidden, padding is visible.",
        "08-masks",
    ),
    "padding-rows": Cause(
        "The padding mask hides rows, the queries, not columns: words still attend to "
        "padding.",
        "08-masks",
    ),
    "padding-wrong-id": Cause(
        "The mask hides token {hidden}, but padding is {pad}.", "08-masks"
    ),
    "padding-some-layers": Cause(
        "The padding mask reaches some layers only: {layers} has none.", "08-masks"
    ),
    "padding-leak": Cause("Padding changes the outputs of real words.", "08-masks"),
    "words-hidden": Cause(
        "The mask hides a real word: token {token} is no padding, and nothing attends "
        "to it.",
        "08-masks",
    ),
    # the batch
    "batch-first-forgotten": Cause(
        "Attention runs over the batch, not over the words: batch_first, or a "
        "transpose, is missing.",
        "04-attention",
    ),
    "positions-along-batch": Cause(
        "Positions are added along the batch, not along the sentence.", "06-positional"
    ),
    "mask-of-another-sentence": Cause(
        "A sentence is masked by another sentence's padding: mask and heads are laid "
        "out differently, or the first mask serves all.",
        "05-multi-head",
    ),
    "batch-mixed": Cause(
        "The sentences of a batch change one another.", "04-attention"
    ),
    "norm-over-batch": Cause(
        "A norm takes its mean over other positions or sentences, not over the "
        "features alone.",
        "07-encoder",
    ),
    # what is read
    "source-ignored": Cause("The source changes nothing.", "09-decoder"),
    "cross-reads-target": Cause(
        "Cross-attention takes its keys and values from the target, not from the "
        "encoder.",
        "09-decoder",
    ),
    "target-ignored": Cause("Earlier target tokens change nothing.", "09-decoder"),
    # positions
    "no-positions": Cause(
        "The order of the {what} does not matter: it gets no positions.",
        "06-positional",
    ),
    "sinusoids": Cause("{misreading}", "06-positional"),
    # attention
    "scale-d-model": Cause(
        "The scores are divided by √d_model; √d_head belongs there.", "04-attention"
    ),
    "scale-missing": Cause(
        "The scores are not divided by √d_head: they grow with the head's width.",
        "04-attention",
    ),
    "scale-not-root": Cause(
        "The scores are divided by d_head, not by its square root.", "04-attention"
    ),
    "scale-multiplied": Cause(
        "The scores are multiplied by √d_head: a division belongs there.",
        "04-attention",
    ),
    "scale-length": Cause(
        "The scores are divided by the root of {what}, not of the head's width.",
        "04-attention",
    ),
    "scale-other": Cause(
        "The scores are multiplied by {scale:.3g}; 1/√d_head is {right:.3g}.",
        "04-attention",
        "look",
    ),
    "softmax-over-queries": Cause(
        "The softmax runs over the queries: the weights of a query do not sum to 1.",
        "04-attention",
    ),
    "softmax-over-heads": Cause(
        "The softmax runs over the heads, not over the keys.", "05-multi-head"
    ),
    "softmax-missing": Cause(
        "No softmax: the weights of a query do not sum to 1.", "04-attention"
    ),
    "softmax-axis": Cause(
        "The weights of a query do not sum to 1: the softmax runs over another axis.",
        "04-attention",
    ),
    "heads-by-view": Cause(
        "Heads are split or merged by view or reshape where a transpose belongs: words "
        "are mixed. With one head the fault is gone.",
        "05-multi-head",
    ),
    "mixed-outside-attention": Cause(
        "Positions are mixed outside attention: a reshape without a transpose, or a "
        "norm over the wrong axis.",
        "05-multi-head",
    ),
    "values-from-keys": Cause(
        "Keys serve as values: there is no value projection of their own.",
        "03-queries-keys-values",
    ),
    "queries-are-keys": Cause(
        "Queries and keys are the same numbers: one projection serves both.",
        "03-queries-keys-values",
    ),
    "values-from-queries": Cause("Queries serve as values.", "03-queries-keys-values"),
    "projection-per-head": Cause(
        "One small projection, d_head by d_head, serves all heads.", "05-multi-head"
    ),
    "output-projection-missing": Cause(
        "The heads are joined without an output projection.", "05-multi-head", "look"
    ),
    "heads-unused": Cause(
        "The number of heads changes nothing: {heads} were asked for.",
        "05-multi-head",
        "look",
    ),
    # layers
    "residual-missing": Cause(
        "A layer has a sublayer without a residual connection: with its weights at "
        "zero the input is lost.",
        "07-encoder",
    ),
    "residual-from-norm": Cause(
        "The residual starts from the normalised input: x = norm(x); x + f(x).",
        "07-encoder",
    ),
    "norm-missing": Cause("A layer of this stack has no norm.", "07-encoder", "look"),
    "dropout-on-residual": Cause(
        "Dropout falls on the residual stream, not on the sublayer's output.",
        "07-encoder",
    ),
    "norm-wrong": Cause("{what}", "07-encoder"),
    "norm-unbiased": Cause(
        "The norm divides by the unbiased deviation (n − 1); the paper's by n.",
        "07-encoder",
        "look",
    ),
    "final-norm-missing": Cause(
        "The layers norm first, but nothing normalises what the last one gives.",
        "07-encoder",
        "look",
    ),
    "feed-forward-linear": Cause(
        "The feed-forward network has no activation: two linear maps are one.",
        "07-encoder",
    ),
    "d-ff-unused": Cause(
        "No layer has the width d_ff that was asked for.", "07-encoder", "look"
    ),
    # weights
    "layers-shared": Cause(
        "All layers are one object: [layer] * n repeats the same weights.", "07-encoder"
    ),
    "module-shared": Cause(
        "One {what} serves several places, with one set of weights.", "07-encoder"
    ),
    "layers-not-registered": Cause(
        "Layers sit in a plain Python list: the optimizer never sees their weights.",
        "07-encoder",
    ),
    "tensor-not-registered": Cause(
        "A plain tensor is an attribute: .to(device) leaves it behind; register_buffer "
        "does not.",
        "06-positional",
        "look",
    ),
    "made-in-forward": Cause(
        "A layer with weights is made anew in each forward: it never learns.",
        "07-encoder",
    ),
    "layers-start-equal": Cause(
        "The layers start as copies of one another.", "07-encoder", "look"
    ),
    "layer-bypassed": Cause(
        "A whole layer is computed for nothing: no output depends on it.", "07-encoder"
    ),
    "layers-unused": Cause(
        "The number of layers changes nothing: {layers} were asked for.",
        "07-encoder",
        "look",
    ),
    "parameter-unused": Cause("{name} is never used.", "07-encoder"),
    "gradient-cut": Cause(
        "{name} changes the output, but no gradient reaches it (detach, .data or "
        "no_grad).",
        "12-training",
    ),
    "padding-row-wrong": Cause(
        "The padding_idx is {found}, but padding is {pad}: token {found} never learns.",
        "02-embedding",
    ),
    # dropout, start, output
    "dropout-fixed": Cause(
        "With dropout=0 training is still random: some rate is written into the code.",
        "07-encoder",
        "look",
    ),
    "dropout-never": Cause(
        "With dropout=0.5 training is not random: the rate goes nowhere.",
        "07-encoder",
        "look",
    ),
    "loss-at-start": Cause(
        "The loss of the untrained model is {loss:.1f}; guessing gives {guess:.1f}.",
        "12-training",
    ),
    "output-probabilities": Cause(
        "The model returns probabilities: CrossEntropyLoss takes a second softmax.",
        "12-training",
        "look",
    ),
    "softmax-over-time": Cause(
        "The output's softmax runs over the positions, not over the vocabulary.",
        "12-training",
    ),
    # loss, schedule, decoding
    "loss-softmax-twice": Cause(
        "The loss applies a softmax to what is already one.", "12-training"
    ),
    "loss-padding-counted": Cause("The loss counts padding.", "12-training"),
    "loss-mean-over-padding": Cause(
        "The loss leaves out padding, but divides by it.", "12-training"
    ),
    "loss-shifted": Cause(
        "The loss compares with the label one place {side}.", "12-training"
    ),
    "loss-ignores-token": Cause(
        "The loss never asks for token {token}.", "12-training"
    ),
    "loss-sign": Cause("The loss falls as the right token gets rarer.", "12-training"),
    "loss-summed": Cause(
        "The loss is a sum: it grows with the batch.", "12-training", "look"
    ),
    "loss-other": Cause(
        "The gradient at the logits is not of the kind p − q.", "12-training"
    ),
    "schedule-from-zero": Cause(
        "The schedule fails, or gives 0, at the first step.", "12-training"
    ),
    "schedule-no-decay": Cause(
        "The rate does not fall after the warm-up.", "12-training"
    ),
    "schedule-no-warmup": Cause("The rate has no warm-up.", "12-training"),
    "schedule-other": Cause(
        "The rate is not the paper's: it should fall with the root of the step.",
        "12-training",
        "look",
    ),
    "cached-differs": Cause(
        "Decoding with the cache gives other numbers than without.", "13-decoding"
    ),
    "cached-position": Cause(
        "Decoding with the cache is right at the first token alone: every cached token "
        "may be at position 0.",
        "13-decoding",
    ),
    "greedy-differs": Cause(
        "Greedy decoding does not take the most probable token of the model.",
        "13-decoding",
    ),
    "beam-differs": Cause(
        "A beam of one does not give what greedy decoding gives.", "13-decoding"
    ),
}
