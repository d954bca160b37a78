"""The causes that an examination can name: stable words, each with its sentence.

Made from book/workshop/museum.md: edit the chapter, not this file.
"""

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Cause", "CAUSES"]


@dataclass(frozen=True)
class Cause:
    """What is wrong, in a sentence; the chapter that explains it; how grave it is."""

    sentence: str
    chapter: str
    level: Literal["bug", "look"] = "bug"


# By chapter; a question mark before what is worth a look, and no more.
_CAUSES = """
02-embedding
  padding-row-wrong: The padding_idx is {found}, but padding is {pad}: token {found}
    never learns.
03-queries-keys-values
  values-from-keys: Keys serve as values: there is no value projection of their own.
  queries-are-keys: Queries and keys are the same numbers: one projection serves both.
  values-from-queries: Queries serve as values.
04-attention
  not-finite: Ordinary sentences give NaN or infinity.
  batch-first-forgotten: Attention runs over the batch, not over the words:
    batch_first, or a transpose, is missing.
  batch-mixed: The sentences of a batch change one another.
  scale-d-model: The scores are divided by √d_model; √d_head belongs there.
  scale-missing: The scores are not divided by √d_head: they grow with the head's
    width.
  scale-not-root: The scores are divided by d_head, not by its square root.
  scale-multiplied: The scores are multiplied by √d_head: a division belongs there.
  scale-length: The scores are divided by the root of {what}, not of the head's width.
  ?scale-other: The scores are multiplied by {scale:.3g}; 1/√d_head is {right:.3g}.
  softmax-over-queries: The softmax runs over the queries: the weights of a query do
    not sum to 1.
  softmax-missing: No softmax: the weights of a query do not sum to 1.
  softmax-axis: The weights of a query do not sum to 1: the softmax runs over another
    axis.
05-multi-head
  mask-of-another-sentence: A sentence is masked by another sentence's padding: mask
    and heads are laid out differently, or the first mask serves all.
  softmax-over-heads: The softmax runs over the heads, not over the keys.
  heads-by-view: Heads are split or merged by view or reshape where a transpose
    belongs: words are mixed. With one head the fault is gone.
  mixed-outside-attention: Positions are mixed outside attention: a reshape without a
    transpose, or a norm over the wrong axis.
  projection-per-head: One small projection, d_head by d_head, serves all heads.
  ?output-projection-missing: The heads are joined without an output projection.
  ?heads-unused: The number of heads changes nothing: {heads} were asked for.
06-positional
  one-length-only: It runs at one length alone: a length is written into the code.
  positions-along-batch: Positions are added along the batch, not along the sentence.
  no-positions: The order of the {what} does not matter: it gets no positions.
  sinusoids: {misreading}
  ?tensor-not-registered: A plain tensor is an attribute: .to(device) leaves it
    behind; register_buffer does not.
07-encoder
  dropout-in-eval: Two runs in evaluation mode differ: dropout stays on (functional
    dropout or scaled_dot_product_attention without self.training, or an nn.Dropout made
    in forward).
  norm-over-batch: A norm takes its mean over other positions or sentences, not over
    the features alone.
  residual-missing: A layer has a sublayer without a residual connection: with its
    weights at zero the input is lost.
  residual-from-norm: The residual starts from the normalised input: x = norm(x); x +
    f(x).
  dropout-on-residual: Dropout falls on the residual stream, not on the sublayer's
    output.
  norm-wrong: {what}
  ?norm-unbiased: The norm divides by the unbiased deviation (n − 1); the paper's by
    n.
  ?final-norm-missing: The layers norm first, but nothing normalises what the last one
    gives.
  feed-forward-linear: The feed-forward network has no activation: two linear maps are
    one.
  ?d-ff-unused: No layer has the width d_ff that was asked for.
  layers-shared: All layers are one object: [layer] * n repeats the same weights.
  module-shared: One {what} serves several places, with one set of weights.
  layers-not-registered: Layers sit in a plain Python list: the optimizer never sees
    their weights.
  made-in-forward: A layer with weights is made anew in each forward: it never learns.
  ?layers-start-equal: The layers start as copies of one another.
  layer-bypassed: A whole layer is computed for nothing: no output depends on it.
  ?layers-unused: The number of layers changes nothing: {layers} were asked for.
  parameter-unused: {name} is never used.
  ?dropout-fixed: With dropout=0 training is still random: some rate is written into
    the code.
  ?dropout-never: With dropout=0.5 training is not random: the rate goes nowhere.
08-masks
  future-leak-no-mask: No causal mask reaches the self-attention over the {what}.
  future-leak-inverted: The causal mask is inverted: each position attends to the
    future, not to the past.
  future-leak-off-by-one: The causal mask is off by one: each position sees the token
    that it should predict.
  self-hidden: The causal mask is off by one: each position is hidden from itself, and
    the first may attend to nothing.
  causal-mask-too-strict: The mask hides part of the past: output {place} never
    attends to token {token}.
  future-leak-some-layers: The causal mask reaches some layers only: {layers} has
    none.
  future-leak-train-only: In training mode later tokens are visible, in evaluation
    mode they are not.
  future-leak-eval-only: In evaluation mode later tokens are visible, in training mode
    they are not.
  future-leak-with-padding: The causal mask is lost where there is padding: the
    padding mask replaces it, or the two are joined with or.
  future-leak: An output depends on later tokens.
  mask-after-softmax: The mask is applied after the softmax: hidden keys are still in
    its sum.
  mask-multiplied: The scores are multiplied by the mask before the softmax: a score
    of 0 is not hidden, its key keeps a weight.
  mask-added: A mask of zeros and ones is added to the scores: that hides nothing.
  mask-dropped: Masked scores are computed and thrown away: masked_fill returns its
    result, it does not change the scores.
  mask-too-weak: The mask puts {value:g} on hidden scores: too little, hidden keys
    keep some weight.
  mask-not-minus: The mask puts {value:g} on hidden scores: that is an ordinary score,
    it should be minus infinity.
  ?mask-can-be-unlearned: The mask puts {value:g} on hidden scores: large weights can
    learn to see past it.
  ?mask-overflows-half: The mask's {value:g} does not fit in float16:
    torch.finfo(dtype).min or minus infinity does.
  ?empty-row: A source of padding alone gives NaN: softmax over a row that is hidden
    whole.
  padding-unmasked: No mask hides the source's padding.
  padding-encoder-unmasked: The encoder gets no padding mask; cross-attention does.
  padding-late: The padding mask starts one place late: the first padding is visible.
  padding-inverted: The padding mask is inverted: words are hidden, padding is
    visible.
  padding-rows: The padding mask hides rows, the queries, not columns: words still
    attend to padding.
  padding-wrong-id: The mask hides token {hidden}, but padding is {pad}.
  padding-some-layers: The padding mask reaches some layers only: {layers} has none.
  padding-leak: Padding changes the outputs of real words.
  words-hidden: The mask hides a real word: token {token} is no padding, and nothing
    attends to it.
09-decoder
  lengths-must-agree: It runs only where source and target have the same length:
    cross-attention may be given the target's mask.
  future-leak-encoder-reads-target: The self-attention over the target is causal;
    something else reads the target without a mask (is the encoder given the target?).
  padding-cross-unmasked: Cross-attention gets no padding mask for the source; the
    encoder does.
  source-ignored: The source changes nothing.
  cross-reads-target: Cross-attention takes its keys and values from the target, not
    from the encoder.
  target-ignored: Earlier target tokens change nothing.
11-data
  batch-of-one-fails: A batch of one sentence fails.
12-training
  gradient-cut: {name} changes the output, but no gradient reaches it (detach, .data
    or no_grad).
  loss-at-start: The loss of the untrained model is {loss:.1f}; guessing gives
    {guess:.1f}.
  ?output-probabilities: The model returns probabilities: CrossEntropyLoss takes a
    second softmax.
  softmax-over-time: The output's softmax runs over the positions, not over the
    vocabulary.
  loss-softmax-twice: The loss applies a softmax to what is already one.
  loss-padding-counted: The loss counts padding.
  loss-mean-over-padding: The loss leaves out padding, but divides by it.
  loss-shifted: The loss compares with the label one place {side}.
  loss-ignores-token: The loss never asks for token {token}.
  loss-sign: The loss falls as the right token gets rarer.
  ?loss-summed: The loss is a sum: it grows with the batch.
  loss-other: The gradient at the logits is not of the kind p − q.
13-decoding
  cached-differs: Decoding with the cache gives other numbers than without.
  cached-position: Decoding with the cache is right at the first token alone: every
    cached token may be at position 0.
  greedy-differs: Greedy decoding does not take the most probable token of the model.
  beam-differs: A beam of one does not give what greedy decoding gives.
"""


def _read(text: str) -> dict[str, Cause]:
    """The causes of such a table, by their words."""
    causes, chapter = {}, ""
    for entry in re.split(r"\n(?! {4})", text.strip()):
        word, _, sentence = " ".join(entry.split()).partition(": ")
        if not sentence:
            chapter = word
            continue
        level: Literal["bug", "look"] = "look" if word.startswith("?") else "bug"
        causes[word.lstrip("?")] = Cause(sentence, chapter, level)
    return causes


CAUSES = _read(_CAUSES)
