"""A service of a language model writes what its run writes, and OpenAI's own client understands it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

import trainwright
from trainwright.runs.run import Run
from trainwright.servers.service.app import make_app
from trainwright.servers.service.language import Drawing, Text
from trainwright.servers.service.settings import Settings

TEXT = "The cat sat on the mat. Der Bär läuft über die Straße. " * 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return trainwright.train(
        {
            "experiment": "language",
            "data": {"type": "text", "path": str(folder / "text.txt"), "length": 32},
            "model": {"type": "gpt", "num_layers": 1, "num_heads": 2, "hidden_size": 32},
            "training": {"max_steps": 150, "batch_size": 16, "learning_rate": 0.01},
        },
        runs_dir=folder / "runs",
        quiet=True,
    )


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    with TestClient(make_app(Settings(str(run.path)))) as client:
        yield client


@pytest.fixture(scope="module")
def wanted(run: Run) -> str:
    return trainwright.generate(run, "The ", 60, seed=4)


def events(response: Any) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_writes_what_the_run_writes(client: TestClient, wanted: str, run: Run) -> None:
    body = {"prompt": "The ", "max_tokens": 60, "seed": 4}
    answer = client.post("/generate", json=body).json()
    assert answer["text"] == wanted
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 60, "total_tokens": 64}
    assert answer["finish_reason"] == "length"
    stream = events(client.post("/generate", json={**body, "stream": True}))
    assert len(stream) > 30
    assert "".join(event["text"] for event in stream) == wanted
    assert not any("\N{REPLACEMENT CHARACTER}" in event["text"] for event in stream[:-2])


def test_the_client_of_openai(client: TestClient, wanted: str, run: Run) -> None:
    api = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client, max_retries=0)
    model = api.models.list().data[0].id
    how = {"model": model, "prompt": "The ", "max_tokens": 60, "seed": 4}
    answer = api.completions.create(**how)
    assert answer.choices[0].text == wanted
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 60
    assert "".join(chunk.choices[0].text for chunk in api.completions.create(**how, stream=True)) == wanted
    stopped = api.completions.create(**how, stop=wanted[20:24])
    assert stopped.choices[0].text == wanted[: wanted.index(wanted[20:24])]
    assert stopped.choices[0].finish_reason == "stop"
    messages: list[Any] = [{"role": "user", "content": "The cat"}]
    chat = {"model": model, "messages": messages, "seed": 4, "max_completion_tokens": 30}
    whole = api.chat.completions.create(**chat).choices[0].message.content
    prompt = "user: The cat\nassistant:"
    assert whole == trainwright.generate(run, prompt, 30, seed=4).strip()
    chunks = api.chat.completions.create(**chat, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip() == whole
    with pytest.raises(openai.UnprocessableEntityError, match="not supported"):
        api.completions.create(**how, n=3)


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("/generate", {}, "'prompt'"),
        ("/generate", {"prompt": 5}, "expected"),
        ("/generate", {"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ("/generate", {"prompt": "a", "temperature": -1}, "temperature"),
        ("/generate", {"prompt": "a", "top_k": 0}, "top_k"),
        ("/generate", {"prompt": "a", "tempreature": 1}, "tempreature"),
        ("/v1/completions", {"prompt": []}, "one prompt"),
        ("/v1/completions", {"prompt": "a", "stop": ""}, "stop"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "texts",
        ),
        ("/v1/chat/completions", {"messages": "hello"}, "expected"),
    ],
)
def test_mistakes_are_said(client: TestClient, route: str, body: Any, words: str) -> None:
    response = client.post(route, json=body)
    assert response.status_code == 422, response.text
    assert words in response.json()["error"]["message"]


def test_the_interface_is_described(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/generate", "/v1/completions", "/v1/chat/completions", "/v1/models"} <= paths.keys()
    assert "/predict" not in paths


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("completions", {"echo": True}),
        ("completions", {"logprobs": 1}),
        ("completions", {"n": 2}),
        ("completions", {"n": 0}),
        ("completions", {"best_of": 3}),
        ("completions", {"stop": ["x"] * 100}),
        ("chat/completions", {"logprobs": True}),
        ("chat/completions", {"tools": [{"type": "function"}]}),
    ],
)
def test_options_that_would_change_the_answer_are_refused(
    client: TestClient, path: str, option: dict[str, Any]
) -> None:
    body = {"prompt": "The "} if path == "completions" else {"messages": [{"role": "user", "content": "a"}]}
    plain = {"model": "m", "max_tokens": 2, **body}
    assert client.post(f"/v1/{path}", json=plain).status_code == 200
    assert client.post(f"/v1/{path}", json={**plain, "n": 1, "logprobs": None}).status_code == 200
    answer = client.post(f"/v1/{path}", json={**plain, **option})
    assert answer.status_code == 422, answer.text
    assert next(iter(option)) in answer.text


def test_a_text_for_which_nobody_waits_ends(run: Run) -> None:
    """Else the model would write on, for tokens that nobody reads."""
    service = make_app(Settings(str(run.path))).state.service
    asked = 0

    async def step(work: Any) -> Any:
        nonlocal asked
        asked += 1
        return work()

    class Gone:
        async def is_disconnected(self) -> bool:
            return asked > 5

    text = Text(service.models.main.predictor, "The ", 10_000, Drawing(1.0, None, 4))
    with pytest.raises(ClientDisconnect):
        asyncio.run(text.whole(step, Gone()))  # type: ignore[arg-type]
    assert asked < 20
