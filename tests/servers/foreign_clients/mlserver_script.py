"""Asks a service with MLServer's codecs and messages; runs in an environment of its own.

Reads a description of a request from the standard input, and prints the answers.
"""

import base64
import json
import sys
import urllib.request

import grpc
import numpy as np
import pandas as pd
from mlserver.codecs import Base64Codec, NumpyRequestCodec, PandasCodec, StringRequestCodec
from mlserver.grpc import converters
from mlserver.grpc import dataplane_pb2 as messages
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub
from mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    MetadataModelResponse,
    MetadataServerResponse,
    RepositoryIndexResponse,
    TensorData,
)


def request_of(task, *, use_bytes):
    match task["codec"]:
        case "pd":
            frame = pd.DataFrame(task["columns"])
            return PandasCodec.encode_request(frame, use_bytes=use_bytes)
        case "np":
            return NumpyRequestCodec.encode_request(np.array(task["matrix"]))
        case "str":
            return StringRequestCodec.encode_request(task["texts"], use_bytes=use_bytes)
        case "base64":
            contents = [base64.b64decode(one) for one in task["images"]]
            return InferenceRequest(inputs=[Base64Codec.encode_input("image", contents, use_bytes=use_bytes)])


def fetched(url, body=None):
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read()


def told(response):
    columns = PandasCodec.decode_response(response).to_dict("list")
    return {
        name: [one.decode() if isinstance(one, bytes) else one for one in cells]
        for name, cells in columns.items()
    }


def main():
    task = json.load(sys.stdin)
    base, model = f"http://{task['http']}/v2", task["model"]
    MetadataServerResponse.model_validate_json(fetched(base))
    MetadataModelResponse.model_validate_json(fetched(f"{base}/models/{model}"))
    RepositoryIndexResponse.model_validate_json(fetched(f"{base}/repository/index", b"{}"))

    asked = request_of(task, use_bytes=False)
    answer = InferenceResponse.model_validate_json(
        fetched(f"{base}/models/{model}/infer", asked.model_dump_json().encode())
    )
    found = {"rest": told(answer)}
    with grpc.insecure_channel(task["grpc"]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(messages.ServerLiveRequest()).live
        metadata = stub.ModelMetadata(messages.ModelMetadataRequest(name=model))
        converters.ModelMetadataResponseConverter.to_types(metadata)
        for use_raw in (False, True):
            request = request_of(task, use_bytes=True)
            for one in request.inputs:
                if one.datatype == "FP64":  # its messages take no None
                    one.data = TensorData([np.nan if value is None else value for value in one.data.root])
            message = converters.ModelInferRequestConverter.from_types(request, model, use_raw=use_raw)
            response = stub.ModelInfer(message)
            found[f"grpc {use_raw}"] = told(converters.ModelInferResponseConverter.to_types(response))
    json.dump(found, sys.stdout)


main()
