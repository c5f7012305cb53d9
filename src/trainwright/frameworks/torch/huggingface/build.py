"""Build a model of transformers from the options of its architecture, with trained or random weights."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from trainwright.errors import ModelError, TrainwrightError
from trainwright.frameworks.torch.huggingface.module import quiet
from trainwright.frameworks.torch.huggingface.params import HuggingFaceParams, LoraParams
from trainwright.frameworks.torch.huggingface.source import Source, source_of
from trainwright.frameworks.torch.params import CLASSIFIER, LANGUAGE_MODEL
from trainwright.plugins import task_for
from trainwright.require import require
from trainwright.types import INPUT_IDS, DataInfo

log = logging.getLogger("trainwright")
EXTRA = "huggingface"
# The option that holds the whole architecture of a trained model, which is built without its first files.
ARCHITECTURE = "architecture"
# What a config.json may hold that leads to code outside transformers, or to weights that are no numbers.
_IGNORED = ("auto_map", "custom_pipelines", "fusion_config", "distributed_config", "dtype", "torch_dtype")
_LISTED = 5  # names that a message lists


def build(
    type_name: str, params: Mapping[str, Any], info: DataInfo, *, read: bool = True
) -> tuple[torch.nn.Module, Source | None]:
    """Return the model that `model.type` and its options name, in float32, and where its weights are from.

    Random weights are drawn from torch's generator.

    Args:
        type_name: `transformers:` and the name of an Auto class.
        params: The options; see `params.HuggingFaceParams`.
        info: The data, which give the number of labels, or of tokens.
        read: Whether the weights of a folder are read; else they are random, too.

    Raises:
        ModelError: The options do not fit the architecture or the data, or the weights cannot be had.
        MissingExtraError: Transformers or peft is not installed.
    """
    options = HuggingFaceParams.model_validate({k: v for k, v in params.items() if k != ARCHITECTURE})
    transformers = require("transformers", EXTRA)
    _check_data(type_name, info)
    stored = params.get(ARCHITECTURE)
    source = None
    if stored is None and options.path is not None:
        source = source_of(options.path, options.revision)
    try:
        config = _configuration(options, source, stored)
        _fit_to_data(type_name, config, options, info)
        auto_class = getattr(transformers, type_name.partition(":")[2])
        with quiet():
            module: torch.nn.Module = _module(auto_class, config, options, source if read else None)
            _finish(type_name, module, info)
            if options.lora is not None:
                module = _with_adapters(module, type_name, options.lora)
    except TrainwrightError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise ModelError(f"model {type_name}: {type(error).__name__}: {text}") from error
    return module, source


def _check_data(type_name: str, info: DataInfo) -> None:
    """Check that the data suit a model of transformers.

    Raises:
        ModelError: They have no tokens, or are for another task.
    """
    if INPUT_IDS not in info.inputs:
        raise ModelError(
            f"model {type_name} takes tokens, but the data have {', '.join(info.inputs)}: it needs arrays "
            f"named {INPUT_IDS} and attention_mask, or data.type: text for a language model"
        )
    if (type_name == LANGUAGE_MODEL) != task_for(info).generates_text:
        other = CLASSIFIER if type_name == LANGUAGE_MODEL else LANGUAGE_MODEL
        raise ModelError(f"model {type_name} is not for {info.task}; write model.type: {other}")


def _configuration(
    options: HuggingFaceParams, source: Source | None, stored: Mapping[str, Any] | None
) -> Any:
    """Return the configuration of an architecture, which leads to no code outside transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = dict(stored if stored is not None else source.config() if source is not None else {})
    given = {} if stored is not None else dict(options.config)
    if source is not None and given.get("model_type", values.get("model_type")) != values.get("model_type"):
        raise ModelError(
            f"model.config.model_type: {given['model_type']} given, but {source.folder} holds "
            f"{values.get('model_type')}; leave it out"
        )
    name = str(values.get("model_type", given.get("model_type")))
    if name not in CONFIG_MAPPING:
        near = difflib.get_close_matches(name, list(CONFIG_MAPPING), _LISTED, 0.0)
        code = "; it has code of its own, which is never executed" if "auto_map" in values else ""
        raise ModelError(
            f"model.config.model_type: transformers has no {name!r}{code}; nearest: {', '.join(near)}"
        )
    cls = CONFIG_MAPPING[name]
    _check_given(given, cls, name)
    if values.get("quantization_config") is not None:
        raise ModelError(
            f"model.path: {options.path} holds quantized weights, which cannot be trained; "
            "name the original model"
        )
    config = cls.from_dict({**_plain(values), **given})
    config._commit_hash = source.commit if source is not None else None
    return config


def _check_given(given: Mapping[str, Any], cls: Any, name: str) -> None:
    """Check the options of an architecture that the user gives.

    Raises:
        ModelError: It has no such option, or one that is set elsewhere.
    """
    default = cls()
    for key in given:
        if key.endswith("_implementation"):
            raise ModelError(f"model.config.{key}: write model.attn_implementation, which is sdpa or eager")
        if key in _IGNORED or key == "quantization_config":
            raise ModelError(
                f"model.config.{key} cannot be given: weights are float32, and all code is its own"
            )
        if not hasattr(default, key) or callable(getattr(default, key)):
            near = difflib.get_close_matches(key, [*default.to_dict(), *cls.attribute_map], _LISTED, 0.0)
            is_typo = bool(difflib.get_close_matches(key, near, 1, 0.75))
            hint = f"did you mean {near[0]!r}?" if is_typo else f"nearest: {', '.join(near)}"
            raise ModelError(f"model.config: {name} has no option {key!r}; {hint}")


def _plain(values: Any) -> Any:
    """Return the options of a config.json, at any depth, without those that lead to other code."""
    if isinstance(values, list):
        return [_plain(one) for one in values]
    if not isinstance(values, Mapping):
        return values
    return {
        key: _plain(value)
        for key, value in values.items()
        if key not in _IGNORED and not key.endswith("_implementation")
    }


def _fit_to_data(type_name: str, config: Any, options: HuggingFaceParams, info: DataInfo) -> None:
    """Give a configuration what the data say: the number of labels and their names, or of tokens.

    Raises:
        ModelError: It has another number, or too few positions.
    """
    length, positions = info.inputs[INPUT_IDS].shape[0], getattr(config, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise ModelError(
            f"model.config.max_position_embeddings: the model has {positions} positions, but samples have "
            f"{length} tokens; make them shorter"
        )
    if type_name == LANGUAGE_MODEL:
        if "vocab_size" in options.config and config.vocab_size != info.outputs:
            raise ModelError(
                f"model.config.vocab_size: {config.vocab_size} given, but the tokenizer of the data has "
                f"{info.outputs} tokens; leave it out"
            )
        if options.path is None:
            config.vocab_size = info.outputs
        if getattr(config, "is_decoder", None) is False:
            raise ModelError(
                f"model.config.is_decoder: {config.model_type} sees the tokens that it is to predict; set it "
                "to true"
            )
        return
    if "num_labels" in options.config and config.num_labels != info.outputs:
        raise ModelError(
            f"model.config.num_labels: {config.num_labels} given, but the data have {info.outputs}; leave it "
            "out"
        )
    names = info.classes if info.classes is not None else [f"LABEL_{index}" for index in range(info.outputs)]
    config.id2label = {index: str(name) for index, name in enumerate(names[: info.outputs])}
    config.label2id = {name: index for index, name in config.id2label.items()}


def _module(auto_class: Any, config: Any, options: HuggingFaceParams, source: Source | None) -> Any:
    """Return the model of a configuration, with the weights of a folder, or with random ones."""
    how = {"dtype": torch.float32, "attn_implementation": options.attn_implementation}
    if source is None:
        return auto_class.from_config(config, trust_remote_code=False, **how)
    module, loaded = auto_class.from_pretrained(
        source.folder,
        config=config,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **how,
    )
    check_loaded(module, source, loaded["mismatched_keys"], loaded["missing_keys"], loaded["unexpected_keys"])
    return module


def check_loaded(
    module: Any,
    source: Source,
    mismatched: Collection[tuple[Any, ...]],
    missing: Collection[str],
    unexpected: Collection[str],
) -> None:
    """Check that the weights of a folder are those of a model; warn of what only one of them has.

    Args:
        module: The model.
        source: The folder.
        mismatched: The name of each weight that has another shape there, with both shapes.
        missing: The names of those that the folder lacks.
        unexpected: The names of those that the model does not have.

    Raises:
        ModelError: They have other shapes, but for a head of other labels, or there are none of them.
    """
    if mismatched and _are_head(mismatched, module.config.num_labels):
        names = _some(sorted(str(name) for name, *_ in mismatched))
        log.warning("model.path: %s was saved with other labels: a new head, %s", source.folder, names)
    elif differing := sorted(map(str, mismatched)):
        raise ModelError(
            f"model.path: the weights in {source.folder} have other shapes: {', '.join(differing[:_LISTED])}"
            "; leave out what model.config changes"
        )
    if len(missing) >= len(list(module.parameters())):
        raise ModelError(
            f"model.path: {source.folder} has none of the weights of {module.config.model_type}; "
            "name the folder of such a model"
        )
    if missing:
        names = _some(sorted(missing))
        log.warning("model.path: %s lacks %s: they begin with random values", source.folder, names)
    if unexpected:
        names = _some(sorted(unexpected))
        log.warning("model.path: of %s, the model does not use %s", source.folder, names)


def _are_head(mismatched: Collection[tuple[Any, ...]], labels: int) -> bool:
    """Return whether tensors of other shapes are all of one layer, whose outputs are the labels."""
    return len({name.rpartition(".")[0] for name, *_ in mismatched}) == 1 and all(
        tuple(own) == (labels, *saved[1:]) for _, saved, own in mismatched
    )


def _some(names: Sequence[str]) -> str:
    """Return the first of some names, for a message."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _finish(type_name: str, module: Any, info: DataInfo) -> None:
    """Fit a model to the tokenizer of the data, and leave out what only generation needs."""
    config = module.config
    if hasattr(config, "use_cache"):  # keys and values of earlier tokens, which training does not use
        config.use_cache = False
    if type_name != LANGUAGE_MODEL:
        if getattr(config, "pad_token_id", None) is None and hasattr(module, "score"):
            raise ModelError(
                f"model.config.pad_token_id: {config.model_type} reads the answer off the last "
                "token that is not padding; say which token pads, such as pad_token_id: 0"
            )
        return
    if config.vocab_size < info.outputs:
        raise ModelError(
            f"model.path: the model has {config.vocab_size} tokens, but the tokenizer of the data has "
            f"{info.outputs}; name the model's own in data.tokenizer: FOLDER/tokenizer.json"
        )
    if config.vocab_size > info.outputs:
        log.info(
            "model.path: the model has %d tokens, and the tokenizer of the data %d: the others are cut off",
            config.vocab_size,
            info.outputs,
        )
        module.resize_token_embeddings(info.outputs)


def _with_adapters(module: Any, type_name: str, lora: LoraParams) -> torch.nn.Module:
    """Freeze a model, and put adapters into it, which alone are trained."""
    peft = require("peft", EXTRA)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM" if type_name == LANGUAGE_MODEL else "SEQ_CLS",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        modules_to_save=list(lora.modules_to_save) or None,
        bias=lora.bias,
    )
    linear = sorted(
        {
            name.rpartition(".")[2]
            for name, one in module.named_modules()
            if type(one).__name__ in ("Linear", "Conv1D")
        }
    )
    try:
        adapters: torch.nn.Module = peft.get_peft_model(module, config)
    except ValueError as error:
        raise ModelError(
            f"model.lora.target_modules: {lora.target_modules} given, but no layer of the model matches; its "
            f"linear layers: {', '.join(linear)}"
        ) from error
    return adapters
