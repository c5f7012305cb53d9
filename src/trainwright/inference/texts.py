"""Text that goes into a language model, and text that comes out of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from trainwright.datasets.texts.tokenizers import Tokenizer, is_plain
from trainwright.errors import InputError
from trainwright.frameworks.base import Model
from trainwright.types import INPUT_IDS, NO_LABEL, TEXT_BYTES, Array, DataInfo, Ids


def text_bytes(tokenizer: Tokenizer, rows: Any, labels: Array) -> dict[str, Array]:
    """Return the bytes of text that the labels of rows stand for, (rows,), by name; empty where each is one.

    Args:
        tokenizer: What made the tokens.
        rows: Arrays by name; they may hold these bytes.
        labels: (rows, length) int64.

    Raises:
        InputError: They are not known: a token of this vocabulary stands for different texts.
    """
    if is_plain(tokenizer):
        return {}
    if isinstance(rows, Mapping) and TEXT_BYTES in rows:
        return {TEXT_BYTES: np.asarray(rows[TEXT_BYTES]).astype(np.int64)}
    lengths = tokenizer.token_bytes()
    if lengths is None:
        raise InputError(
            f"rows without {TEXT_BYTES} given; with this tokenizer, the labels alone do not "
            f"say how many bytes of text they stand for: give {TEXT_BYTES}, (rows,) int64, too"
        )
    counted = labels != NO_LABEL
    return {TEXT_BYTES: (lengths[np.where(counted, labels, 0)] * counted).sum(axis=1)}


@dataclass(frozen=True)
class Drawing:
    """The way in which the tokens of a text are drawn.

    Attributes:
        temperature: Logits are divided by it; 0: the most probable token each time.
        top_k: Draw only from this many most probable tokens; of equally probable ones, the first.
        seed: The seed of the random numbers.

    Raises:
        InputError: An option makes no sense.
    """

    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        is_finite = math.isfinite(self.temperature) and self.temperature >= 0
        if not is_finite or (self.top_k is not None and self.top_k < 1) or self.seed < 0:
            raise InputError(
                f"temperature {self.temperature:g}, top_k {self.top_k}, seed {self.seed} given; a "
                "temperature is a number of at least 0, top_k at least 1, seed at least 0"
            )


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the tokens of a prompt; of an empty one, the token for the end of another text.

    Raises:
        InputError: The prompt has no token.
    """
    try:
        start_of_text = prompt.encode()
    except UnicodeEncodeError as error:
        raise InputError("the prompt is not text in UTF-8: give it in this encoding") from error
    end = tokenizer.end_of_text
    (encoded,) = tokenizer.encode([start_of_text])
    tokens: list[int] = encoded.ids.tolist() or ([] if end is None else [end])
    if not tokens:
        raise InputError(
            "the prompt is empty, and this model has no token for the end of a text, from "
            "which it could start: give some text"
        )
    return tokens


def drawn_tokens(
    model: Model, tokenizer: Tokenizer, info: DataInfo, prompt: Sequence[int], drawing: Drawing
) -> Iterator[int]:
    """Yield the tokens that continue a prompt, up to the end of the text, if it has one.

    Each token is drawn from the model's distribution, given the tokens before it: at most as many as a
    training sample has. Each costs one call of the model.
    """
    length, tokens = info.inputs[INPUT_IDS].shape[0], list(prompt)
    draws = np.random.default_rng(drawing.seed)
    while True:
        logits = model.next_token(np.array(tokens[-length:], np.int64))  # (vocabulary,)
        token = _drawn(logits, drawing.temperature, drawing.top_k, float(draws.random()))
        if token == tokenizer.end_of_text:
            return
        tokens.append(token)
        yield token


def generate(
    model: Model,
    tokenizer: Tokenizer,
    info: DataInfo,
    prompt: str,
    max_tokens: int = 200,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """Return a text that continues `prompt`, up to its end or `max_tokens`.

    The text is a function of the model, the prompt and the options.

    Args:
        model: The model.
        tokenizer: What makes its tokens.
        info: The description of its data.
        prompt: How the text begins; empty: as after the end of another one.
        max_tokens: The number of tokens at most.
        temperature: As in `Drawing`, like all that follows.
        top_k: As in `Drawing`.
        seed: As in `Drawing`.

    Raises:
        InputError: An option makes no sense, or the prompt has no token.
    """
    drawing = Drawing(temperature, top_k, seed)
    if max_tokens < 0:
        raise InputError(f"max_tokens {max_tokens} given; it is a number of at least 0")
    start = prompt_tokens(tokenizer, prompt)
    tokens = islice(drawn_tokens(model, tokenizer, info, start, drawing), max_tokens)
    return tokenizer.decode(np.array([*tokens], np.int64))


def _drawn(logits: Array, temperature: float, top_k: int | None, draw: float) -> int:
    """Return a token by a number from [0, 1)."""
    if temperature == 0:
        return int(np.argmax(logits))
    order: Ids = np.argsort(-logits, kind="stable")[:top_k]  # the most probable first
    scaled = (logits[order] - logits[order[0]]) / temperature
    total = np.cumsum(np.exp(scaled))
    return int(order[np.searchsorted(total, draw * total[-1], side="right")])
