"""The description of a service: its models, and its interface as OpenAPI."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from trainwright.plugins import task_for
from trainwright.servers.service.feedback import is_supported
from trainwright.servers.service.forms.base import JSON
from trainwright.servers.service.language import REQUESTS
from trainwright.servers.service.served import ServedModel
from trainwright.version import VERSION


def description(model: ServedModel) -> dict[str, Any]:
    """Return what is known of a model."""
    predictor = model.predictor
    return {
        "name": model.name,
        "run": predictor.run_id,
        "identity": model.identity,
        "task": predictor.info.task,
        "classes": None if predictor.info.classes is None else [str(one) for one in predictor.info.classes],
    }


def openapi(model: ServedModel, title: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the interface of a service in OpenAPI 3.1."""
    if task_for(model.predictor.info).generates_text:
        own, schemas = _language_paths()
    else:
        own, schemas = {"/predict": {"post": _predict(model)}}, {"Predictions": _predictions(model)}
        if is_supported(model):
            own |= _FEEDBACK
        if explains(model):
            own["/explain"] = {"post": _explain(own["/predict"]["post"])}
            schemas["Explanations"] = _EXPLANATIONS
    plain = {"200": {"description": "OK"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": VERSION},
        "paths": {
            **own,
            "/health": {"get": {"summary": "Whether the process lives", "responses": plain}},
            "/ready": {"get": {"summary": "Whether requests are answered", "responses": plain}},
            "/version": {"get": {"summary": "What is served", "responses": plain}},
            "/metrics": {"get": {"summary": "Metrics for Prometheus", "responses": plain}},
            "/v2": {
                "get": {
                    "summary": "The server, as clients of the open inference protocol know it",
                    "description": "Models are at `/v2/models/NAME` and `/v2/models/NAME/infer`.",
                    "responses": plain,
                }
            },
        },
        "components": {"schemas": {**schemas, "Error": _ERROR}, **(_KEY if needs_key else {})},
        "security": [{"key": []}] if needs_key else [],
    }


_KEY = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}


def _language_paths() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the paths of a language model, and the schemas of their bodies."""
    _, schemas = msgspec.json.schema_components(REQUESTS.values(), ref_template="#/components/schemas/{name}")
    summaries = {
        "/generate": "Continue a text",
        "/v1/completions": "Continue texts, for clients of OpenAI",
        "/v1/chat/completions": "Answer a chat, for clients of OpenAI",
    }
    paths: dict[str, Any] = {
        route: {
            "post": {
                "summary": summaries[route],
                "requestBody": {
                    "required": True,
                    "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}},
                },
                "responses": {"200": {"description": "The text; with `stream`, its pieces as they come."}},
            }
        }
        for route, body in REQUESTS.items()
    }
    models = {"summary": "The model, for clients of OpenAI", "responses": {"200": {"description": "OK"}}}
    return {**paths, "/v1/models": {"get": models}}, schemas


def _predict(model: ServedModel) -> dict[str, Any]:
    """Return the description of `POST /predict`."""
    form = model.form
    binary = {"schema": {"type": "string", "format": "binary"}}
    bodies = {name: binary for name in form.readers() if name != JSON}
    error = {"$ref": "#/components/schemas/Error"}
    problems = {
        "400": "The body cannot be read.",
        "401": "The key is missing or wrong.",
        "413": "The body is too large.",
        "415": "The content type is not known.",
        "422": "Rows cannot be predicted; row and column are named.",
        "429": "Too many rows wait.",
        "503": "The request timed out in the queue, or the service is stopping.",
    }
    return {
        "summary": f"Predict {form.noun}",
        "description": f"Predictions of run {model.predictor.run_id} ({model.predictor.info.task}).",
        "parameters": [
            {
                "name": "threshold",
                "in": "query",
                "schema": {"type": "number", "minimum": 0, "maximum": 1},
                "description": "Predict the positive class from this probability on.",
            },
            {
                "name": "on_error",
                "in": "query",
                "schema": {"type": "string", "enum": ["stop", "null"], "default": "stop"},
                "description": "`null`: a row that cannot be predicted gets an error of its own.",
            },
        ],
        "requestBody": {"required": True, "content": {JSON: {"schema": form.schema()}, **bodies}},
        "responses": {
            "200": {
                "description": "The predictions, in the order of the rows.",
                "content": {JSON: {"schema": {"$ref": "#/components/schemas/Predictions"}}},
            },
            **{
                code: {"description": text, "content": {JSON: {"schema": error}}}
                for code, text in problems.items()
            },
        },
    }


def explains(model: ServedModel) -> bool:
    """Return whether the predictions of a model can be explained by columns of a table."""
    task = task_for(model.predictor.info)
    return bool(model.predictor.column_names) and not (task.sums or task.gives_masks)


def _explain(predict: dict[str, Any]) -> dict[str, Any]:
    """Return the description of `POST /explain`, which takes the bodies of `POST /predict`."""
    schema = {"schema": {"$ref": "#/components/schemas/Explanations"}}
    output = {
        "name": "output",
        "in": "query",
        "schema": {"type": "string"},
        "description": "The number to explain, such as `probability_gold`; the default is the probability of "
        "the class that is predicted, or the value.",
    }
    return {
        **predict,
        "summary": "Explain predictions",
        "description": "The contribution of each column to the prediction for each row (Shapley values).",
        "parameters": [output],
        "responses": {
            **predict["responses"],
            "200": {"description": "The explanations, in the order of the rows.", "content": {JSON: schema}},
        },
    }


def _predictions(model: ServedModel) -> dict[str, Any]:
    """Return the JSON schema of the predictions of a model."""
    predictor = model.predictor
    task, info = task_for(predictor.info), predictor.info
    if task.gives_masks or task.has_inner_labels or task.sums:
        row: dict[str, Any] = {"type": "object"}
    else:
        shape = (1,) if info.outputs == 1 else (1, info.outputs)
        columns = predictor.table(np.full(shape, 0.5, np.float32))
        row = {
            "type": "object",
            "properties": {name: {"type": _type_of(values[0])} for name, values in columns.items()},
        }
    return {
        "type": "object",
        "title": "Predictions",
        "properties": {
            "predictions": {
                "oneOf": [
                    {"type": "array", "items": row},
                    {
                        "type": "object",
                        "description": "for columns: a list for each of the same names",
                        "additionalProperties": {"type": "array", "items": {}},
                    },
                ]
            },
            "id": {"type": "string", "description": "the X-Request-Id, or one that was made"},
            "run": {"type": "string", "description": "the run that predicted"},
        },
        "required": ["predictions", "id", "run"],
    }


def _type_of(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "string"


_LABELS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "the id of the request"},
        "labels": {"type": "array", "items": {}, "description": "the label of each row"},
        "label": {"description": "instead: the label of the only row"},
    },
    "required": ["id"],
}
_FEEDBACK: dict[str, Any] = {
    "/feedback": {
        "post": {
            "summary": "Take labels that come later",
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": {"oneOf": [_LABELS, {"type": "array", "items": _LABELS}]}}},
            },
            "responses": {
                "200": {"description": "All labels are taken."},
                "202": {"description": "Some wait for a prediction of this id."},
                "422": {"description": "Some are refused; the other items are taken."},
            },
        }
    },
    "/quality": {
        "get": {
            "summary": "Metrics of the rows whose labels have come",
            "parameters": [
                {
                    "name": "rows",
                    "in": "query",
                    "schema": {"type": "integer", "minimum": 1},
                    "description": "Count the last rows alone.",
                }
            ],
            "responses": {"200": {"description": "The metrics of each model, with 95% intervals."}},
        }
    },
}
_ERROR: dict[str, Any] = {
    "type": "object",
    "title": "Error",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "rows": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "row": {"type": ["integer", "null"], "description": "from 1"},
                            "column": {"type": ["string", "null"]},
                            "message": {"type": "string"},
                        },
                    },
                },
            },
            "required": ["code", "message"],
        }
    },
}
_BY_COLUMN: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "number"}}
_EXPLANATIONS: dict[str, Any] = {
    "type": "object",
    "title": "Explanations",
    "properties": {
        "explanations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "explained": {"type": "string", "description": "the number that is explained"},
                    "base": {"type": "number", "description": "its mean for the background rows"},
                    "contributions": {
                        **_BY_COLUMN,
                        "description": "what each column adds: base + their sum is the number",
                    },
                    "standard_error": {**_BY_COLUMN, "type": ["object", "null"]},
                },
            },
        },
        "method": {"type": "string", "enum": ["exact", "permutations"]},
        "background": {
            "type": "object",
            "properties": {"rows": {"type": "integer"}, "of": {"type": "string"}},
        },
        "predicted_rows": {"type": "integer"},
        "id": {"type": "string"},
        "run": {"type": "string"},
    },
    "required": ["explanations", "id", "run"],
}
