"""A character-level language model in plain Python: embeddings, one tanh layer, softmax, trained by momentum SGD."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass
from operator import mul

CONTEXT = 6  # characters the model sees
EMBEDDING = 8  # numbers a character is turned into
HIDDEN = 24


@dataclass(frozen=True)
class Shape:
    """Where each matrix lies in the flat vector of parameters."""

    vocabulary: int

    @property
    def inputs(self) -> int:
        """Width of the hidden layer's input."""
        return CONTEXT * EMBEDDING

    @property
    def offsets(self) -> tuple[int, int, int, int, int]:
        """Starts of: hidden weights, hidden bias, output weights, output bias; and the total length."""
        hidden_weights = self.vocabulary * EMBEDDING
        hidden_bias = hidden_weights + HIDDEN * self.inputs
        output_weights = hidden_bias + HIDDEN
        output_bias = output_weights + self.vocabulary * HIDDEN
        return hidden_weights, hidden_bias, output_weights, output_bias, output_bias + self.vocabulary


def initial_parameters(shape: Shape, seed: int) -> array[float]:
    """Small random weights, the same on every rank for the same seed."""
    source = random.Random(seed)  # noqa: S311
    hidden_weights, hidden_bias, output_weights, output_bias, total = shape.offsets
    scales = [(hidden_weights, 0.5), (hidden_bias, 1 / math.sqrt(shape.inputs)), (output_weights, 0.0)]
    scales += [(output_bias, 1 / math.sqrt(HIDDEN)), (total, 0.0)]
    values: list[float] = []
    for end, scale in scales:
        values.extend(source.gauss(0.0, scale) if scale else 0.0 for _ in range(end - len(values)))
    return array("d", values)


def loss_and_gradient(
    shape: Shape, parameters: array[float], text: list[int], positions: list[int]
) -> tuple[float, list[float]]:
    """Sum over `positions` of the cross-entropy (nats) of text[p] given the characters before it, and its gradient."""
    hidden_weights, hidden_bias, output_weights, output_bias, total = shape.offsets
    inputs, vocabulary = shape.inputs, shape.vocabulary
    embeddings = [list(parameters[i * EMBEDDING : (i + 1) * EMBEDDING]) for i in range(vocabulary)]
    first = [list(parameters[hidden_weights + j * inputs : hidden_weights + (j + 1) * inputs]) for j in range(HIDDEN)]
    bias = list(parameters[hidden_bias:output_weights])
    second = [
        list(parameters[output_weights + v * HIDDEN : output_weights + (v + 1) * HIDDEN]) for v in range(vocabulary)
    ]
    last = list(parameters[output_bias:])
    columns = [list(column) for column in zip(*second, strict=True)]
    first_columns = [list(column) for column in zip(*first, strict=True)]

    gradient = [0.0] * total
    loss = 0.0
    for position in positions:
        context = text[position - CONTEXT : position]
        target = text[position]
        x = [value for character in context for value in embeddings[character]]
        hidden = [math.tanh(b + sum(map(mul, row, x))) for row, b in zip(first, bias, strict=True)]
        logits = [b + sum(map(mul, row, hidden)) for row, b in zip(second, last, strict=True)]
        top = max(logits)
        exponentials = [math.exp(value - top) for value in logits]
        scale = 1.0 / sum(exponentials)
        error = [value * scale for value in exponentials]  # probabilities, then their difference to the truth
        loss -= math.log(max(error[target], 1e-300))
        error[target] -= 1.0

        at = output_weights
        for v, slope in enumerate(error):
            gradient[output_bias + v] += slope
            gradient[at : at + HIDDEN] = [
                g + slope * h for g, h in zip(gradient[at : at + HIDDEN], hidden, strict=True)
            ]
            at += HIDDEN
        back = [sum(map(mul, column, error)) * (1.0 - h * h) for column, h in zip(columns, hidden, strict=True)]
        at = hidden_weights
        for j, slope in enumerate(back):
            gradient[hidden_bias + j] += slope
            gradient[at : at + inputs] = [g + slope * v for g, v in zip(gradient[at : at + inputs], x, strict=True)]
            at += inputs
        into = [sum(map(mul, column, back)) for column in first_columns]
        for place, character in enumerate(context):
            start = character * EMBEDDING
            for k in range(EMBEDDING):
                gradient[start + k] += into[place * EMBEDDING + k]
    return loss, gradient


def update(
    parameters: array[float], momentum: array[float], gradient: list[float], rate: float, clip: float = 5.0
) -> float:
    """One step of SGD with momentum 0.9, in place; returns the gradient's norm before it was clipped."""
    norm = math.sqrt(sum(map(mul, gradient, gradient)))
    scale = min(1.0, clip / norm) if norm > 0 else 1.0
    for i, slope in enumerate(gradient):
        momentum[i] = 0.9 * momentum[i] + scale * slope
        parameters[i] -= rate * momentum[i]
    return norm
