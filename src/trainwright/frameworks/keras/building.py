"""Build, load or copy the model of a run, and find out what its outputs mean."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.digest import sha256_json
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import LearnerInputs, ModelInputs
from trainwright.frameworks.keras.builtin import BUILT_IN
from trainwright.frameworks.keras.losses import Outputs, Values, takes_logits, treats_columns_independently
from trainwright.frameworks.keras.optim import saved_config
from trainwright.frameworks.support.definition import described_attributes, path_of
from trainwright.require import import_path
from trainwright.types import Array, DataInfo

log = logging.getLogger("trainwright")

POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_TRIAL_ROWS = 8
# Methods of a model that `fit` would call, and Trainwright does not.
_UNUSED_METHODS = ("train_step", "test_step", "predict_step", "compute_loss")


class Compiled(NamedTuple):
    """The arguments that a model was compiled with; all None if it was not compiled."""

    loss: Any = None
    optimizer: Any = None
    metrics: Any = None  # Keras's CompileMetrics, which holds the arguments of `compile`


def build_model(keras: Any, inputs: ModelInputs, policy: str) -> tuple[Any, Compiled]:
    """Return the model of a run, and what it was compiled with.

    New weights are drawn from Python's random generator.

    Args:
        keras: The keras module.
        inputs: What the model is built from.
        policy: Keras's dtype policy for the layers.

    Raises:
        ModelError: The model cannot be built or loaded, or is not a Keras model.
    """
    model = inputs.model
    if model is None and inputs.config.model.type == "keras":
        model = _loaded(keras, inputs.model_params)
    elif model is None:
        built_in = inputs.config.model.type in BUILT_IN
        # With float32, keep the policy that a user may have set globally for a class of theirs.
        with _policy(keras, policy) if built_in or policy != "float32" else nullcontext():
            model = _constructed(keras, inputs)
        return _checked(model, inputs), _compiled(model)
    if policy != "float32":
        _set_policy(model, policy)
    return _checked(model, inputs), _compiled(model)


def definition(model: Any) -> dict[str, str]:
    """Return the digest of a model object's layers and compile options, and the user's own layer classes.

    The digest is the same for a model that is created again in the same process, although Keras then numbers
    its layers differently, and for a model that has already been built with the shapes of the data.
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
    described = {"layers": sha256_json(plain(_config_of(model))), **own}
    internal = vars(_keras_class(model, "Layer")()).keys() | vars(_keras_class(model, "Model")()).keys()
    attributes = {
        f"attribute {name} of layer {number}": value
        for number, layer in enumerate(layers)
        if not _of_keras(type(layer))
        for name, value in vars(layer).items()
        if name not in internal and not _leads_to_keras(value)
    }
    return described | described_attributes(attributes)


def _config_of(model: Any) -> Any:
    """Return the config of a model; of one that has none those of its layers, whose order the model knows."""
    try:
        return json.loads(model.to_json())
    except Exception:
        layers = model._flatten_layers(include_self=False)
        return [
            {"class": path_of(type(layer)), "config": json.loads(json.dumps(layer.get_config(), default=str))}
            for layer in layers
            if _of_keras(type(layer))
        ]


def _keras_class(model: Any, name: str) -> Any:
    """Return the class that Keras calls so, among those of a model; nothing is imported."""
    return next(base for base in type(model).__mro__ if base.__name__ == name and _of_keras(base))


def _leads_to_keras(value: Any) -> bool:
    """Return whether a value is or contains a Keras layer or variable, which the digest of layers covers."""
    if isinstance(value, dict | list | tuple | set):
        parts = [*value.values()] if isinstance(value, dict) else [*value]
        return any(map(_leads_to_keras, parts))
    return any(_of_keras(base) for base in type(value).__mro__)


def _checked(model: Any, inputs: ModelInputs) -> Any:
    """Return the model, after checking that no code of its own would be silently ignored.

    Raises:
        ModelError: The model overrides a method that Trainwright does not call.
    """
    own = [name for name in _UNUSED_METHODS if not _of_keras(getattr(type(model), name))]
    if own:
        raise ModelError(
            f"model {inputs.config.model.type}: it overrides {' and '.join(own)}, which Trainwright never "
            "calls: it has a training step of its own; move the code into layers (`add_loss` adds losses), "
            "or into a compiled loss"
        )
    return model


def check_trainable(model: Any, inputs: LearnerInputs) -> None:
    """Check that a built model can be trained, and warn of metrics that are never computed.

    Raises:
        ModelError: It has no weights to train.
    """
    name = inputs.config.model.type
    if not model.trainable_variables:
        raise ModelError(f"model {name}: it has no weights to train")
    if not _of_keras(type(model).compute_metrics) or any(layer._metrics for layer in model._flatten_layers()):
        log.warning(
            "model %s: metrics that it was not compiled with are never computed; pass them to compile", name
        )


def _of_keras(thing: Any) -> bool:
    """Return whether a class or function is one of Keras's own."""
    return str(thing.__module__).split(".")[0] == "keras"


def _compiled(model: Any) -> Compiled:
    """Return what a model was compiled with."""
    if not getattr(model, "compiled", False):
        return Compiled()
    return Compiled(model.loss, model.optimizer, getattr(model, "_compile_metrics", None))


@contextmanager
def _policy(keras: Any, policy: str) -> Iterator[None]:
    """Set the dtype policy of layers that are created inside the context."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _set_policy(model: Any, policy: str) -> None:
    """Set the dtype policy of the existing layers that compute in float32.

    The last layer keeps float32, since the loss needs its precision.
    """
    last = {id(layer) for layer in model.layers[-1:]}
    for layer in model._flatten_layers():
        if layer.dtype_policy.name == "float32" and id(layer) not in last:
            layer.dtype_policy = policy


def copied(keras: Any, model: Any) -> Any:
    """Return a copy of a model object with the same weights; the object itself if Keras cannot copy it."""
    classes = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
    try:
        with keras.saving.custom_object_scope(classes):
            copy = _clone(keras, model)
        for layer, original in zip(copy._flatten_layers(), model._flatten_layers(), strict=False):
            layer.trainable = original.trainable
        if model.built:
            if not copy.built:
                copy.build_from_config(model.get_build_config())
            copy.set_weights(model.get_weights())
    except Exception as error:
        log.warning(
            "the model cannot be copied (%s: %s): your object itself is used, and its weights will change; "
            "give its class a get_config that returns its constructor's arguments",
            type(error).__name__,
            _first_line(error),
        )
        return model
    if getattr(model, "compiled", False):
        _compile_alike(copy, model)
    return copy


def _compile_alike(copy: Any, model: Any) -> None:
    """Give a copy what a model was compiled with; `compile` itself would need all of it in a config."""
    names = ("compiled", "loss", "optimizer", "_compile_loss", "_compile_metrics", "_compile_config")
    vars(copy).update({name: vars(model)[name] for name in names if name in vars(model)})


def policies(model: Any) -> list[tuple[Any, Any]]:
    """Return the layers of a model, each with its dtype policy."""
    return [(layer, layer.dtype_policy) for layer in model._flatten_layers()]


def set_policies(kept: Sequence[tuple[Any, Any]]) -> None:
    """Give layers the dtype policies that they had."""
    for layer, policy in kept:
        if layer.dtype_policy != policy:
            layer.dtype_policy = policy


def _clone(keras: Any, model: Any) -> Any:
    """Return a model with the same layers and new weights, not compiled."""
    if not _of_keras(type(model)):
        return type(model).from_config(model.get_config())

    def clone_layer(layer: Any) -> Any:
        # Keras would rebuild a Lambda's function from its code, without the globals that it refers to.
        if isinstance(layer, keras.layers.Lambda):
            options = {"output_shape": layer._output_shape, "mask": layer.mask, "arguments": layer.arguments}
            return keras.layers.Lambda(layer.function, name=layer.name, dtype=layer.dtype_policy, **options)
        return type(layer).from_config(layer.get_config())

    # Keras would compile the copy of a compiled model too, which fails for some losses.
    compiled, model.compiled = model.compiled, False
    try:
        return keras.models.clone_model(model, clone_function=clone_layer, recursive=True)
    finally:
        model.compiled = compiled


def _loaded(keras: Any, params: Mapping[str, Any]) -> Any:
    """Load a .keras file, without executing any code in it.

    Raises:
        ModelError: The file cannot be loaded.
    """
    file = str(params["file"])
    saved_config(Path(file))  # gives a clear error if the file is not a model at all
    own = {
        path.partition(":")[2].split(".")[-1]: _imported(path, "model.params.custom_objects")
        for path in params["custom_objects"]
    }
    try:
        return keras.models.load_model(file, custom_objects=own, safe_mode=True)
    except Exception as error:
        hint = "list your own classes that it needs in model.params.custom_objects"
        if "lambda" in str(error).lower():
            hint = (
                "a Lambda layer holds code, which is never executed from a file: use a Layer subclass instead"
            )
        raise ModelError(
            f"model.params.file: {file} cannot be loaded: {_first_line(error)}; {hint}"
        ) from error


def _constructed(keras: Any, inputs: ModelInputs) -> Any:
    """Construct a built-in model, or call the user's class or function.

    The arguments are `params` and, if the callable has parameters with these names that `params` does not
    set, `in_features` (number of features), `input_shape` (of one sample) and `out_features` (number of
    classes or values).

    Raises:
        ModelError: `model.type` is not callable, the call fails, or it does not return a Keras model.
    """
    name, info = inputs.config.model.type, inputs.info
    params = dict(inputs.model_params)
    if name in BUILT_IN:
        params.pop("backend")
    make: Any = BUILT_IN.get(name) or _imported(name, "model.type")
    if isinstance(make, keras.Model):
        raise ModelError(
            f"model {name} is a model object, whose weights do not follow from the seed; "
            "name its class, or a function"
        )
    if not callable(make):
        raise ModelError(
            f"model {name}: {type(make).__name__} given; "
            "expected a keras.Model class, or a function that returns one"
        )
    known = {
        "in_features": int(np.prod(info.input_shape)),
        "input_shape": info.input_shape,
        "out_features": info.outputs,
    }
    # Before Python 3.11.4, the signature of a class is that of Keras's own `__new__(*args, **kwargs)`.
    accepted = inspect.signature(make.__init__ if inspect.isclass(make) else make).parameters
    added = {key: value for key, value in known.items() if key in accepted and key not in params}
    try:
        model = make(**added, **params)
    except InputError:
        raise
    except Exception as error:
        # The user's values are not shown: one may be a secret from the environment.
        arguments = ", ".join(
            [*(f"{key}={value!r}" for key, value in added.items()), *(f"{key}=..." for key in params)]
        )
        raise ModelError(
            f"model {name}: {make.__name__}({arguments}) failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, keras.Model):
        raise ModelError(f"model {name}: it returned a {type(model).__name__}; expected a keras.Model")
    return model


def _imported(path: str, key: str) -> Any:
    """Import what a config key names; errors name the key."""
    try:
        return import_path(path)
    except InputError as error:
        raise ModelError(f"{key}: {error}") from error


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if there is no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _trial_rows(info: DataInfo, dtype: Any) -> Array:
    """Return (8, ...) random zeros and ones: valid features for any model, as integers or floats."""
    draw = np.random.Generator(np.random.PCG64(0))
    return draw.integers(0, 2, (_TRIAL_ROWS, *info.input_shape)).astype(dtype)


def check_outputs(
    keras: Any, model: Any, compiled: Compiled, inputs: ModelInputs, dtypes: Sequence[Any]
) -> Outputs:
    """Call the model on trial rows, which builds its weights, and check that its outputs fit the data.

    Args:
        keras: The keras module.
        model: The model.
        compiled: What the model was compiled with.
        inputs: What the model is built from.
        dtypes: The dtypes that the features may have; the first one that the model takes is used.

    Returns:
        The meaning of the outputs.

    Raises:
        ModelError: The call fails, or the outputs do not fit the data.
    """
    info, name = inputs.info, inputs.config.model.type
    outputs: Any = None
    for dtype in dtypes:
        rows = _trial_rows(info, dtype)
        try:
            outputs = model(keras.ops.convert_to_tensor(rows), training=False)
            break
        except Exception as error:
            if dtype == dtypes[-1]:
                raise ModelError(
                    f"model {name}: it fails on features of shape {rows.shape}: {_first_line(error)}"
                ) from error
    shape = tuple(outputs.shape) if hasattr(outputs, "shape") else ()
    targets = _OF_TASK[info.task]
    columns = {info.outputs, 1} if targets.one_for_two and info.outputs == 2 else {info.outputs}
    if shape not in {(_TRIAL_ROWS, count) for count in columns} | (
        {(_TRIAL_ROWS,)} if 1 in columns else set()
    ):
        actual = shape or type(outputs).__name__
        raise ModelError(
            f"model {name}: for {_TRIAL_ROWS} samples it returns {actual}, but the data have "
            f"{info.outputs} {targets.noun}; expected a tensor of shape ({_TRIAL_ROWS}, {info.outputs})"
        )
    values = np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32")))
    return targets.meaning(keras, model, compiled.loss, values, inputs)


def _of_values(keras: Any, model: Any, loss: Any, outputs: Array, inputs: ModelInputs) -> Outputs:  # noqa: ARG001
    return Values(outputs.ndim == 1 or outputs.shape[1] == 1, logits=False)


def _of_classes(keras: Any, model: Any, loss: Any, outputs: Array, inputs: ModelInputs) -> Outputs:
    """Find out what the outputs of a classifier mean.

    The last activation determines whether they are logits or probabilities. Otherwise the values of several
    columns do, and then the compiled loss.

    Args:
        keras: The keras module.
        model: The model.
        loss: The loss that the model was compiled with, if any.
        outputs: (8,) or (8, outputs) float32 outputs of trial rows.
        inputs: What the model is built from.

    Raises:
        ModelError: The compiled loss trains the model and contradicts its outputs, or nothing determines the
            meaning.
    """
    single = outputs.ndim == 1 or outputs.shape[1] == 1
    activation, by_loss, used = (
        _last_activation(model),
        takes_logits(keras, loss),
        inputs.config.training.loss == "auto",
    )
    logits = {"linear": True, "sigmoid": False, "softmax": None if single else False}.get(activation)
    sums_to_one = bool((outputs >= 0).all() and np.allclose(outputs.sum(axis=-1), 1, atol=1e-2))
    if logits is None and not single:
        outside = bool((outputs < 0).any() or (outputs > 1 + 1e-2).any())
        logits = False if sums_to_one else True if outside else None
    if used and logits is not None and by_loss is not None and by_loss != logits:
        gives, takes = ("logits" if one else "probabilities" for one in (logits, by_loss))
        raise ModelError(
            f"the model returns {gives}{activation and f' ({activation})'}, but is compiled with a loss that "
            f"takes {takes}; set from_logits={logits} in the loss, or give the model another last activation"
        )
    logits = by_loss if logits is None else logits
    if logits is None and single:
        raise ModelError(
            "the model returns one output for two classes, and nothing says whether it is a probability; "
            "give it two outputs, or compile it with keras.losses.BinaryCrossentropy(from_logits=...)"
        )
    logits = logits is not False
    independent = (
        activation == "sigmoid"
        or not (logits or sums_to_one)
        or (used and treats_columns_independently(keras, loss))
    )
    return Outputs(single, logits, independent=independent and not single)


class _Targets(NamedTuple):
    """The words for the targets of a task, and the rule that finds the meaning of a model's outputs."""

    noun: str
    meaning: Callable[[Any, Any, Any, Array, ModelInputs], Outputs]
    one_for_two: bool  # whether one output may stand for two


_OF_TASK: Mapping[str, _Targets] = {
    "classification": _Targets("classes", _of_classes, one_for_two=True),
    "regression": _Targets("values", _of_values, one_for_two=False),
}


def _last_activation(model: Any) -> str:
    """Return the name of a model's last activation (linear, sigmoid, softmax ...); empty if it is unknown."""
    outputs = getattr(model, "outputs", None)  # a user's subclass has none: any layer of it may be the last
    if not outputs:
        return ""
    layer, node, _ = outputs[0]._keras_history
    # Skip linear Activation layers, which only convert 16-bit outputs to float32.
    while type(layer).__name__ == "Activation" and layer.activation.__name__ == "linear":
        layer, node, _ = layer._inbound_nodes[node].input_tensors[0]._keras_history
    if getattr(layer, "outputs", None):
        return _last_activation(layer)
    name = str(getattr(getattr(layer, "activation", None), "__name__", type(layer).__name__)).lower()
    return name if name != "linear" or hasattr(layer, "kernel") else ""
