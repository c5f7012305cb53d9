"""Asks a service as users of tritonclient do; runs in an environment of its own.

Reads a description of requests from the standard input, and prints the answers of all clients.
"""

import asyncio
import json
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def array_of(given):
    if given["dtype"] == "bytes":
        texts = [bytes.fromhex(one) for one in given["data"]]
        return np.array(texts, dtype=object).reshape(given["shape"])
    return np.array(given["data"], dtype=given["dtype"]).reshape(given["shape"])


def inputs_of(module, given, **how):
    made = []
    for one in given:
        array = array_of(one)
        tensor = module.InferInput(one["name"], list(array.shape), np_to_triton_dtype(array.dtype))
        made.append(tensor.set_data_from_numpy(array, **how))
    return made


def told(result, names):
    arrays = {name: result.as_numpy(name) for name in names}
    return {
        name: [one.decode() if isinstance(one, bytes) else one for one in array.tolist()]
        for name, array in arrays.items()
    }


def refusals(client, module, model, given):
    """What is said to mistakes."""
    found = {}
    good = inputs_of(module, given)
    for name, call in {
        "model": lambda: client.infer("another", good),
        "version": lambda: client.infer(model, good, "7"),
        "output": lambda: client.infer(model, good, outputs=[module.InferRequestedOutput("nothing")]),
        "input": lambda: client.infer(model, good[1:]),
    }.items():
        try:
            call()
        except InferenceServerException as error:
            found[name] = [error.status(), error.message()]
    return found


def asked(module, client, model, given, **how):
    metadata = client.get_model_metadata(model)
    if module is grpc:
        metadata = client.get_model_metadata(model, as_json=True)
    names = [one["name"] for one in metadata["outputs"]]
    plain = client.infer(model, inputs_of(module, given), request_id="mine")
    found = {"plain": told(plain, names)}
    version = metadata["versions"][0]
    chosen = client.infer(
        model, inputs_of(module, given), version, [module.InferRequestedOutput(names[-1])], **how
    )
    found["chosen"] = told(chosen, names[-1:])
    waiting = []
    if module is grpc:
        done = []
        for _ in range(8):
            client.async_infer(
                model, inputs_of(module, given), lambda result, error: done.append((result, error))
            )
        while len(done) < 8:
            pass
        assert all(error is None for _, error in done), done
        found["together"] = [told(result, names) for result, _ in done]
    else:
        waiting = [client.async_infer(model, inputs_of(module, given)) for _ in range(8)]
        found["together"] = [told(one.get_result(), names) for one in waiting]
    return found | {
        "alive": [client.is_server_live(), client.is_server_ready(), client.is_model_ready(model)],
        "metadata": metadata,
        "refusals": refusals(client, module, model, given),
    }


async def asked_async(module, address, model, given):
    async with module.InferenceServerClient(address) as client:
        assert await client.is_model_ready(model)
        result = await client.infer(model, inputs_of(http if module is http_aio else grpc, given))
        return told(result, [one["name"] for one in (await client.get_model_metadata(model, **({"as_json": True} if module is grpc_aio else {})))["outputs"]])  # fmt: skip


def main():
    task = json.load(sys.stdin)
    model, given = task["model"], task["inputs"]
    rest = http.InferenceServerClient(task["http"], concurrency=4)
    channel = grpc.InferenceServerClient(task["grpc"])
    found = {
        "http": asked(http, rest, model, given, request_compression_algorithm="deflate"),
        "grpc": asked(grpc, channel, model, given, compression_algorithm="gzip"),
        "http aio": {"plain": asyncio.run(asked_async(http_aio, task["http"], model, given))},
        "grpc aio": {"plain": asyncio.run(asked_async(grpc_aio, task["grpc"], model, given))},
        "index": [one["name"] for one in rest.get_model_repository_index()],
    }
    if task["as_json"]:
        names = [one["name"] for one in found["http"]["metadata"]["outputs"]]
        wanted = [http.InferRequestedOutput(name, binary_data=False) for name in names]
        result = rest.infer(model, inputs_of(http, given, binary_data=False), outputs=wanted)
        found["http json"] = {"plain": told(result, names)}
    json.dump(found, sys.stdout)


main()
