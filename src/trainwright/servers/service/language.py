"""Texts of a language model: one token after the other, in a stream or at the end.

The interface is that of `trainwright generate`, and that which clients of OpenAI know. Each token is one job
in the queue, so that several texts are written at a time, and none waits for the end of another.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from trainwright.errors import InputError
from trainwright.inference.predictor import Predictor
from trainwright.inference.texts import Drawing, drawn_tokens, prompt_tokens
from trainwright.servers.service.errors import RequestError
from trainwright.servers.service.forms.base import JSON, decoded

_ENCODER = msgspec.json.Encoder()
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the bytes of a character that is not whole yet
_MOST_STOPS = 16
_DEFAULT_TOKENS = 200
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Prompt(msgspec.Struct, forbid_unknown_fields=True):
    """A request to `/generate`."""

    prompt: str
    max_tokens: Count = _DEFAULT_TOKENS
    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 0
    stream: bool = False


class Completion(msgspec.Struct):
    """A request to `/v1/completions`; what is not here is refused or has no effect, see `_refuse`."""

    prompt: str | list[str]
    model: str = ""
    max_tokens: Count | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    n: int | None = None
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool = False


class Part(msgspec.Struct):
    """A part of a message; only texts are taken."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """A message of a chat."""

    role: str
    content: str | list[Part] | None = None


class Chat(msgspec.Struct):
    """A request to `/v1/chat/completions`."""

    messages: list[Message]
    model: str = ""
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    n: int | None = None
    logprobs: bool | None = None
    tools: list[Any] | None = None


class Steps(Protocol):
    """The queue, as texts need it."""

    async def __call__(self, step: Callable[[], Any]) -> Any:
        """Return what a function returns, which is called when the model is free."""


@dataclass
class Text:
    """A text that is being written.

    Args:
        predictor: The language model.
        prompt: How the text begins.
        limit: The number of tokens at most.
        drawing: How they are drawn.
        stops: Texts that end it; they are left out.

    Raises:
        InputError: The prompt has no token, or the run is no language model.
    """

    predictor: Predictor
    prompt: str
    limit: int
    drawing: Drawing
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._start = prompt_tokens(self.predictor.tokenizer, self.prompt)
        self._tokens: list[int] = []
        self.ended_by = "length"

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens, as OpenAI names them."""
        given, made = len(self._start), len(self._tokens)
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}

    async def whole(self, step: Steps, request: Request) -> str:
        """Return the whole text.

        Raises:
            ClientDisconnect: Nobody waits for it any more.
        """
        parts = []
        async for piece in self.pieces(step):
            if await request.is_disconnected():
                raise ClientDisconnect
            parts.append(piece)
        return "".join(parts)

    async def pieces(self, step: Steps) -> AsyncIterator[str]:
        """Yield the text in pieces, each as soon as no token can change it."""
        predictor, said = self.predictor, 0
        drawn = drawn_tokens(predictor.model, predictor.tokenizer, predictor.info, self._start, self.drawing)
        text = ""
        while len(self._tokens) < self.limit:
            token = await step(lambda: next(drawn, None))
            if token is None:
                self.ended_by = "stop"
                break
            self._tokens.append(token)
            text = predictor.tokenizer.decode(np.array(self._tokens, np.int64))
            if (at := self._stop(text)) is not None:
                self.ended_by, text = "stop", text[:at]
                break
            until = len(text.rstrip(_UNFINISHED)) - self._held(text)
            if until > said:
                yield text[said:until]
                said = until
        if len(text) > said:
            yield text[said:]

    def _stop(self, text: str) -> int | None:
        """Return where the first text that ends this one begins."""
        return min((at for stop in self.stops if (at := text.find(stop)) >= 0), default=None)

    def _held(self, text: str) -> int:
        """Return the number of characters at the end that may be the beginning of such a text."""
        return max(
            (n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0
        )


class Language:
    """The endpoints of a language model.

    Args:
        predictor_of: Returns the model that answers a request, and its name.
        step: The queue.
        read: Reads the body of a request.
    """

    def __init__(
        self,
        predictor_of: Callable[[Request], tuple[Predictor, str]],
        step: Steps,
        read: Callable[[Request], Awaitable[bytes]],
    ) -> None:
        self._predictor_of = predictor_of
        self._step = step
        self._read = read

    async def generate(self, request: Request) -> Response:
        """Continue a prompt, as `trainwright generate` does."""
        asked: Prompt = decoded(await self._read(request), _PROMPT)
        drawing = _checked(lambda: Drawing(asked.temperature, asked.top_k, asked.seed))
        predictor, _ = self._predictor_of(request)
        text = _checked(lambda: Text(predictor, asked.prompt, asked.max_tokens, drawing))
        if not asked.stream:
            whole = await text.whole(self._step, request)
            return _json(
                {"text": whole, "finish_reason": text.ended_by, "usage": text.usage, "run": predictor.run_id}
            )

        async def events() -> AsyncIterator[Any]:
            async for piece in text.pieces(self._step):
                yield {"text": piece}
            yield {"text": "", "finish_reason": text.ended_by, "usage": text.usage}

        return _stream(events())

    async def models(self, request: Request) -> Response:
        """List the model, as OpenAI's clients ask for it."""
        _, name = self._predictor_of(request)
        return _json({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "trainwright"}]})

    async def completions(self, request: Request) -> Response:
        """Continue prompts, as OpenAI's clients ask for it."""
        asked: Completion = decoded(await self._read(request), _COMPLETION)
        _refuse(n=asked.n, best_of=asked.best_of, logprobs=asked.logprobs, echo=asked.echo)
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        if not prompts or (asked.stream and len(prompts) > 1):
            raise RequestError(422, "invalid_request", "give one prompt, or several without stream")
        predictor, name = self._predictor_of(request)
        texts = [_text(predictor, prompt, asked.max_tokens, asked) for prompt in prompts]
        head = {"id": f"cmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}
        if asked.stream:
            return _stream(
                self._completion_events(texts[0], {**head, "object": "text_completion"}), done=True
            )
        choices, usage = [], dict.fromkeys(texts[0].usage, 0)
        for index, text in enumerate(texts):
            whole = await text.whole(self._step, request)
            choices.append({"index": index, "text": whole, "finish_reason": text.ended_by, "logprobs": None})
            usage = {key: value + text.usage[key] for key, value in usage.items()}
        return _json({**head, "object": "text_completion", "choices": choices, "usage": usage})

    async def _completion_events(self, text: Text, head: Mapping[str, Any]) -> AsyncIterator[Any]:
        async for piece in text.pieces(self._step):
            choice = {"index": 0, "text": piece, "finish_reason": None, "logprobs": None}
            yield {**head, "choices": [choice]}
        choice = {"index": 0, "text": "", "finish_reason": text.ended_by, "logprobs": None}
        yield {**head, "choices": [choice], "usage": text.usage}

    async def chat(self, request: Request) -> Response:
        """Answer a chat, as OpenAI's clients ask for it."""
        asked: Chat = decoded(await self._read(request), _CHAT)
        _refuse(n=asked.n, logprobs=asked.logprobs, tools=asked.tools)
        if not asked.messages:
            raise RequestError(422, "invalid_request", "messages is empty")
        predictor, name = self._predictor_of(request)
        limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        text = _text(predictor, _prompt_of(asked.messages), limit, asked)
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}
        if asked.stream:
            return _stream(self._chat_events(text, {**head, "object": "chat.completion.chunk"}), done=True)
        whole = await text.whole(self._step, request)
        message = {"role": "assistant", "content": whole.strip()}
        choice = {"index": 0, "message": message, "finish_reason": text.ended_by}
        return _json({**head, "object": "chat.completion", "choices": [choice], "usage": text.usage})

    async def _chat_events(self, text: Text, head: Mapping[str, Any]) -> AsyncIterator[Any]:
        delta: dict[str, str] = {"role": "assistant", "content": ""}
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        async for piece in text.pieces(self._step):
            yield {**head, "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": text.ended_by}]}


REQUESTS: Mapping[str, type[msgspec.Struct]] = {
    "/generate": Prompt,
    "/v1/completions": Completion,
    "/v1/chat/completions": Chat,
}
_PROMPT = msgspec.json.Decoder(Prompt)
_COMPLETION = msgspec.json.Decoder(Completion)
_CHAT = msgspec.json.Decoder(Chat)


def _checked(make: Callable[[], Any]) -> Any:
    """Return what a function makes of a request.

    Raises:
        RequestError: The request makes no sense.
    """
    try:
        return make()
    except InputError as error:
        raise RequestError(422, "invalid_request", str(error)) from None


def _text(predictor: Predictor, prompt: str, limit: int | None, asked: Completion | Chat) -> Text:
    """Return the text that a client of OpenAI asks for."""
    stops = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    if len(stops) > _MOST_STOPS:
        raise RequestError(422, "invalid_request", f"{len(stops):,} stops given; there may be {_MOST_STOPS}")
    if any(not stop for stop in stops):
        raise RequestError(422, "invalid_request", "stop holds an empty text")
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    temperature = 1.0 if asked.temperature is None else asked.temperature
    limit = _DEFAULT_TOKENS if limit is None else limit
    text: Text = _checked(lambda: Text(predictor, prompt, limit, Drawing(temperature, None, seed), stops))
    return text


_ONE = ("n", "best_of")  # options that may be 1


def _refuse(**options: Any) -> None:
    """Refuse options of OpenAI's that would change the answer, and that there are not here.

    Raises:
        RequestError: One is given.
    """
    for name, value in options.items():
        if value is not None and value is not False and value != [] and not (value == 1 and name in _ONE):
            raise RequestError(422, "unknown_option", f"{name} is not supported: leave it out")


def _prompt_of(messages: list[Message]) -> str:
    """Return a chat as one text: a line `role: content` for each message, and the role that answers."""
    lines = []
    for message in messages:
        content = message.content
        if isinstance(content, list):
            if any(part.type != "text" for part in content):
                raise RequestError(422, "invalid_request", "only texts can be parts of a message")
            content = "".join(part.text for part in content)
        lines.append(f"{message.role}: {content or ''}\n")
    return "".join([*lines, "assistant:"])


def _stream(events: AsyncIterator[Any], *, done: bool = False) -> Response:
    """Return events as they come, as server-sent events."""

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield b"data: " + _ENCODER.encode(event) + b"\n\n"
        except RequestError as error:  # the answer has begun
            yield b"data: " + _ENCODER.encode(error.to_json()) + b"\n\n"
        if done:
            yield b"data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _json(content: Any) -> Response:
    return Response(_ENCODER.encode(content), media_type=JSON)
