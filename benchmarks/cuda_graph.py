"""Greedy decoding by one CUDA graph, which repeats a step without Python's part in it.

A graph repeats the same kernels on the same memory: no shape may change from step to
step. So each step attends to the whole store through a mask, and the position is a
tensor. On a CPU the step runs as it is.
"""

import math
from collections.abc import Callable

import peers  # noqa: F401 (it finds the package)
import torch
from torch import Tensor
from torch.nn import functional as F

from transformer.decoding.fast import FastDecoderLayer, FastState
from transformer.model import Transformer
from transformer.text.words import BOS_ID, EOS_ID, PAD_ID


class StaticLayer(FastDecoderLayer):
    """The fast layer over the whole store: its shapes never change."""

    def attend_to_past(self, x: Tensor, state: FastState, past: Tensor) -> Tensor:
        split = self.split(x, 1)
        past.index_copy_(3, state.position, split[1:])
        mask = (state.cells <= state.position)[None, None, None]
        heads = F.scaled_dot_product_attention(split[0], *past, mask, scale=1.0)
        return self.self_output(heads.transpose(1, 2).reshape(x.shape))


class StaticState(FastState):
    """Greedy decoding by a step that a CUDA graph can repeat; sources are unpadded."""

    def __init__(self, model: Transformer, source: Tensor, length: int) -> None:
        self.model, layers = model, model.decoder.layers
        self.layers = [StaticLayer(layer) for layer in layers]
        memory = self.encode(source)
        _, _, rows, heads, _, d_k = memory.shape
        past = [memory.new_zeros(2, rows, heads, length, d_k) for _ in layers]
        super().__init__(None, memory, None, past, None, beam_size=1)
        self.cells = torch.arange(length, device=source.device)
        self.position = source.new_zeros(1)
        self.tokens = source.new_full((rows,), BOS_ID)
        self.special = source.new_tensor([PAD_ID, BOS_ID, EOS_ID])
        self.repeat = self.advance
        if source.is_cuda:
            self.repeat = self.capture()

    def capture(self) -> Callable[[], None]:
        """The step as a graph, after one that is not recorded."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.advance()
            self.position.zero_()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.advance()
        return graph.replay

    def greedy_search(self, source: Tensor) -> Tensor:
        """Every row to the full length: padding, bos and eos are never chosen."""
        self.prefill(source)
        tokens = source.new_empty(len(self.cells), len(source))
        for row in tokens:
            self.repeat()
            row.copy_(self.tokens)
        return tokens.T

    def prefill(self, source: Tensor) -> None:
        """Begin with other sources of the same shape."""
        self.memory.copy_(self.encode(source))
        self.position.zero_()
        self.tokens.fill_(BOS_ID)

    def encode(self, source: Tensor) -> Tensor:
        """Keys and values of the source for each layer, as a `FastState` has them."""
        encoded = self.model.encode(source)
        pairs = [
            layer.cross_attention.keys_values(encoded, encoded)
            for layer in self.model.decoder.layers
        ]
        return torch.stack([torch.stack(tuple(pair)) for pair in pairs])

    def advance(self) -> None:
        """Append the likeliest next token to each row."""
        model = self.model
        x = model.target_embedding(self.tokens[:, None])[:, 0]
        x = x + model.position.table[self.position]
        for layer, past, memory in zip(
            self.layers, self.past, self.memory, strict=True
        ):
            x = layer(x, self, past, memory)
        logits = model.output(model.decoder.norm(x)).float()
        logits.index_fill_(1, self.special, -math.inf)
        self.tokens.copy_(logits.argmax(dim=-1))
        self.position.add_(1)
