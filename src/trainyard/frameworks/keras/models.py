"""The built-in models, the user's own, and what is known of a model before it learns."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainyard.digest import sha256_json
from trainyard.errors import InputError, ModelError
from trainyard.frameworks.base import FrameworkInputs
from trainyard.frameworks.keras.builtin import BUILT_IN
from trainyard.frameworks.keras.losses import Outputs, judges_columns_apart, takes_logits
from trainyard.frameworks.keras.optim import saved_config
from trainyard.frameworks.support.definition import path_of
from trainyard.require import import_path
from trainyard.types import Array, DataInfo

log = logging.getLogger("trainyard")

POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_TRIED_ROWS = 8
_OUR_STEP = (
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
)  # what `fit` would call of a model, and we do not


class Compiled(NamedTuple):
    """What a model was compiled with; None where it was not."""

    loss: Any = None
    optimizer: Any = None
    metrics: Any = None  # Keras's CompileMetrics, which holds what `compile` was given


def build_model(keras: Any, inputs: FrameworkInputs, policy: str) -> tuple[Any, Compiled]:
    """The model that the inputs names, and what it was compiled with; its weights are drawn from Python's generator.

    Args:
        policy: Keras's dtype policy of its layers.

    Raises:
        ModelError: it cannot be had, or is no Keras model.
    """
    source = inputs.model
    if source is None and inputs.config.model.type == "keras":
        source = _loaded(keras, inputs.model_params)
    elif source is None:
        ours = inputs.config.model.type in BUILT_IN
        with (
            _policy(keras, policy) if ours or policy != "float32" else nullcontext()
        ):  # the user may have set one for a class
            model = _made(keras, inputs)
        return _checked(model, inputs), _compiled(model)
    model = _copied(keras, source, inputs) if source is inputs.model else source
    if policy != "float32":
        _set_policy(model, policy)
    return _checked(model, inputs), _compiled(source)


def definition(model: Any) -> dict[str, str]:
    """Of a model object: the digest of its layers and of what it was compiled with, and the classes that are the user's own.

    Keras numbers the layers of a process, so that the same model, made again, has other names; and one that has seen data knows
    the shapes. Neither counts.
    """
    names: dict[str, str] = {}

    def plain(node: Any) -> Any:
        if isinstance(node, dict):
            if isinstance(name := node.get("name"), str):
                names.setdefault(name, f"#{len(names)}")
            return {key: plain(value) for key, value in node.items() if key != "build_config"}
        if isinstance(node, list):
            return [plain(item) for item in node]
        return names.get(node, node) if isinstance(node, str) else node

    layers = [model, *model._flatten_layers(include_self=False)]
    own = {
        f"layer {number}": path_of(type(layer))
        for number, layer in enumerate(layers)
        if not _of_keras(type(layer))
    }
    return {"layers": sha256_json(plain(json.loads(model.to_json()))), **own}


def _checked(model: Any, inputs: FrameworkInputs) -> Any:
    own = [name for name in _OUR_STEP if not _of_keras(getattr(type(model), name))]
    if own:
        raise ModelError(
            f"model {inputs.config.model.type}: it has a {' and a '.join(own)} of its own, which are never called "
            "here: steps are Trainyard's. Put what they do into layers (`add_loss` takes further losses), or into a compiled loss"
        )
    measures = not _of_keras(type(model).compute_metrics) or any(
        layer._metrics for layer in model._flatten_layers()
    )
    if measures and inputs.order:
        log.warning(
            "model %s: metrics of its own, which it was not compiled with, are never computed here: give them to compile",
            inputs.config.model.type,
        )
    return model


def _of_keras(thing: Any) -> bool:
    """Whether a class or a function is one of Keras's own."""
    return str(thing.__module__).split(".")[0] == "keras"


def _compiled(model: Any) -> Compiled:
    if not getattr(model, "compiled", False):
        return Compiled()
    return Compiled(model.loss, model.optimizer, getattr(model, "_compile_metrics", None))


@contextmanager
def _policy(keras: Any, policy: str) -> Iterator[None]:
    """The dtype policy of layers that are made inside the context."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _set_policy(model: Any, policy: str) -> None:
    """For layers that are there already: those that compute in float32 because nothing else was asked for.

    The last ones stay as they are, since a loss wants whole numbers.
    """
    last = {id(layer) for layer in model.layers[-1:]}
    for layer in model._flatten_layers():
        if layer.dtype_policy.name == "float32" and id(layer) not in last:
            layer.dtype_policy = policy


def _copied(keras: Any, model: Any, inputs: FrameworkInputs) -> Any:
    """A model with the same weights, since training must not change an input: it begins a repetition, too."""
    classes = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
    try:
        with keras.saving.custom_object_scope(classes):
            copied = _twin(keras, model)
        for mine, its in zip(copied._flatten_layers(), model._flatten_layers(), strict=False):
            mine.trainable = its.trainable
        if model.built:
            if not copied.built:
                copied(_rows(inputs.info, np.float32))
            copied.set_weights(model.get_weights())
    except Exception as error:
        raise ModelError(
            f"the model object cannot be copied ({type(error).__name__}: {_first_line(error)}); give its class a get_config that "
            "returns its constructor's arguments, or name the class in model.type"
        ) from error
    return copied


def _twin(keras: Any, model: Any) -> Any:
    """A model of the same layers, with weights of its own."""
    if not _of_keras(type(model)):
        return type(model).from_config(model.get_config())

    def twin(layer: Any) -> Any:
        if isinstance(
            layer, keras.layers.Lambda
        ):  # Keras would make its function anew, without what it refers to
            options = {"output_shape": layer._output_shape, "mask": layer.mask, "arguments": layer.arguments}
            return keras.layers.Lambda(layer.function, name=layer.name, dtype=layer.dtype_policy, **options)
        return type(layer).from_config(layer.get_config())

    compiled, model.compiled = (
        model.compiled,
        False,
    )  # else Keras would compile the other, too, which not every loss lets it
    try:
        return keras.models.clone_model(model, clone_function=twin, recursive=True)
    finally:
        model.compiled = compiled


def _loaded(keras: Any, params: Mapping[str, Any]) -> Any:
    file = str(params["file"])
    saved_config(Path(file))  # says what is wrong with a file that is no model at all
    own = {
        path.partition(":")[2].split(".")[-1]: _imported(path, "model.params.custom_objects")
        for path in params["custom_objects"]
    }
    try:
        return keras.models.load_model(file, custom_objects=own, safe_mode=True)
    except Exception as error:
        hint = "name the classes of your own that it needs in model.params.custom_objects"
        if "lambda" in str(error).lower():
            hint = "a Lambda layer holds code, and no code of a file is executed: make a Layer subclass of it"
        raise ModelError(
            f"model.params.file: {file} cannot be loaded: {_first_line(error)}; {hint}"
        ) from error


def _made(keras: Any, inputs: FrameworkInputs) -> Any:
    """A built-in model, or what the user's class or function gives.

    It is given `params`, and besides, where it has parameters of these names that `params` does not set: `in_features` (the
    number of features), `input_shape` (of one sample) and `out_features` (classes or values).
    """
    name, info = inputs.config.model.type, inputs.info
    params = dict(inputs.model_params)
    if name in BUILT_IN:
        params.pop("backend")
    make: Any = BUILT_IN.get(name) or _imported(name, "model.type")
    if isinstance(make, keras.Model):
        raise ModelError(
            f"model {name} is an object, whose weights no seed tells: name its class, or a function"
        )
    if not callable(make):
        raise ModelError(
            f"model {name}: {type(make).__name__} given; a keras.Model class, or a function that makes one, is needed"
        )
    known = {
        "in_features": int(np.prod(info.input_shape)),
        "input_shape": info.input_shape,
        "out_features": info.outputs,
    }
    accepted = inspect.signature(make).parameters
    ours = {key: value for key, value in known.items() if key in accepted and key not in params}
    try:
        model = make(**ours, **params)
    except InputError:
        raise
    except Exception as error:
        # The user's values are not shown: one may be a secret from the environment.
        given = ", ".join(
            [*(f"{key}={value!r}" for key, value in ours.items()), *(f"{key}=..." for key in params)]
        )
        raise ModelError(
            f"model {name}: {make.__name__}({given}) failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, keras.Model):
        raise ModelError(f"model {name}: it gives a {type(model).__name__}, not a keras.Model")
    return model


def _imported(path: str, key: str) -> Any:
    try:
        return import_path(path)
    except InputError as error:
        raise ModelError(f"{key}: {error}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _rows(info: DataInfo, dtype: Any) -> Array:
    """(8, ...) zeros and ones, different ones: what any model of such features can be fed with, integers or not."""
    draw = np.random.Generator(np.random.PCG64(0))
    return draw.integers(0, 2, (_TRIED_ROWS, *info.input_shape)).astype(dtype)


def tried(keras: Any, model: Any, compiled: Compiled, inputs: FrameworkInputs) -> Outputs:
    """Feeds the model some rows, so that a misfit is found here and not as a traceback of step 1, and its weights are made.

    Returns:
        What its outputs mean.

    Raises:
        ModelError: it fails, or gives what does not fit the data.
    """
    info, name = inputs.info, inputs.config.model.type
    dtypes = (
        [inputs.splits["train"].take(np.zeros(1, dtype=np.int64)).features.dtype]
        if inputs.order
        else [np.float32, np.int64]
    )
    found: Any = None
    for dtype in dtypes:
        rows = _rows(info, dtype)
        try:
            found = model(keras.ops.convert_to_tensor(rows), training=False)
            break
        except Exception as error:
            if dtype == dtypes[-1]:
                raise ModelError(
                    f"model {name}: fed with features {rows.shape}, it fails: {_first_line(error)}"
                ) from error
    if not model.trainable_variables and inputs.order:
        raise ModelError(f"model {name}: it has no weights to train")
    shape = tuple(found.shape) if hasattr(found, "shape") else ()
    columns = {info.outputs, 1} if info.task == "classification" and info.outputs == 2 else {info.outputs}
    if shape not in {(_TRIED_ROWS, count) for count in columns} | (
        {(_TRIED_ROWS,)} if 1 in columns else set()
    ):
        given = shape or type(found).__name__
        kind = "classes" if info.task == "classification" else "values"
        raise ModelError(
            f"model {name}: for {_TRIED_ROWS} samples it gives {given}, but the data has {info.outputs} {kind}: a tensor of "
            f"shape ({_TRIED_ROWS}, {info.outputs}) is expected"
        )
    values = np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(found, "float32")))
    return _meaning(keras, model, compiled.loss, values, inputs)


def _meaning(keras: Any, model: Any, loss: Any, found: Array, inputs: FrameworkInputs) -> Outputs:
    """Whether outputs are logits or probabilities is told by the last activation; else, of several, by their values; and by the
    compiled loss, which must not contradict where it is the one that trains.
    """
    single = found.ndim == 1 or found.shape[1] == 1
    if inputs.info.task == "regression":
        return Outputs(single, logits=False)
    activation, by_loss, used = (
        _last_activation(model),
        takes_logits(keras, loss),
        inputs.config.training.loss == "auto",
    )
    logits = {"linear": True, "sigmoid": False, "softmax": None if single else False}.get(activation)
    sums_to_one = bool((found >= 0).all() and np.allclose(found.sum(axis=-1), 1, atol=1e-2))
    if logits is None and not single:
        outside = bool((found < 0).any() or (found > 1 + 1e-2).any())
        logits = False if sums_to_one else True if outside else None
    if used and logits is not None and by_loss is not None and by_loss != logits:
        gives, takes = ("logits" if one else "probabilities" for one in (logits, by_loss))
        raise ModelError(
            f"the model gives {gives}{activation and f' ({activation})'}, but is compiled with a loss that takes {takes}: set "
            f"from_logits={logits} in the loss, or give the model another last activation"
        )
    logits = by_loss if logits is None else logits
    if logits is None and single:
        raise ModelError(
            "the model gives one output for two classes, and nothing tells whether it is a probability; give it two outputs, or "
            "compile it with keras.losses.BinaryCrossentropy(from_logits=...)"
        )
    logits = logits is not False
    apart = (
        activation == "sigmoid" or not (logits or sums_to_one) or (used and judges_columns_apart(keras, loss))
    )
    return Outputs(single, logits, apart=apart and not single)


def _last_activation(model: Any) -> str:
    """The name of what gives a model's outputs: linear, sigmoid, softmax ...; empty where it cannot be told."""
    outputs = getattr(model, "outputs", None)  # of a class of the user's, any layer may come last
    if not outputs:
        return ""
    layer, node, _ = outputs[0]._keras_history
    while (
        type(layer).__name__ == "Activation" and layer.activation.__name__ == "linear"
    ):  # to bring halves back to float32
        layer, node, _ = layer._inbound_nodes[node].input_tensors[0]._keras_history
    if getattr(layer, "outputs", None):
        return _last_activation(layer)
    name = str(getattr(getattr(layer, "activation", None), "__name__", type(layer).__name__)).lower()
    return name if name != "linear" or hasattr(layer, "kernel") else ""
