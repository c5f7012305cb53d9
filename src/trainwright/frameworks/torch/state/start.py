"""The weights that a model begins with, of a file that need not be its own: names, skips, another head."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from trainwright.config.schema import InitFromConfig
from trainwright.digest import WEIGHTS_FILE
from trainwright.errors import ModelError
from trainwright.frameworks.torch.patterns import matching, nearest
from trainwright.frameworks.torch.state.custom import TRAINED_LOSS
from trainwright.frameworks.torch.state.files import shapes_of
from trainwright.records.initial_weights import LoadedWeights, some

ADAPTERS = "adapter_config.json"  # beside the adapters of peft
_PREFIXES = ("module.", "_orig_mod.", "model.")  # of DistributedDataParallel, torch.compile and Lightning
_WITHIN = ("state_dict", "model_state_dict", "model", "module")  # keys under which files have the weights
_LOSSES = (f"{TRAINED_LOSS}loss.", f"{TRAINED_LOSS}heads_")  # which sources of other tasks do not have
_PLAIN = re.compile(r"[\w.-]+")
_ADAPTER = re.compile(r"\.(lora_\w+?)(\.weight)?$")
_LISTED = 3  # layers that a message lists
GROWN = (
    "; all parameters fit, but some buffers do not, which may change shape in training: "
    "leave these out of the file, or register them with persistent=False"
)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """The tensors of a source that a model takes.

    Attributes:
        names: The model's name of each one, by its name in the source.
        record: What became of all of them.
        is_whole: Whether they are exactly the model's own, by name and shape.
    """

    names: Mapping[str, str]
    record: LoadedWeights
    is_whole: bool


@dataclass(frozen=True)
class Live:
    """The tensors of a model that is about to begin.

    Attributes:
        shapes: The shape of each tensor of its `state_dict`, by name.
        tied: The first name of each tensor, by all its names.
        parameters: The names of its parameters.
        trained: The names of those that are trained.
        outputs: The size of the first dimension of a head; None if the data give none.
        elsewhere: The names that only other processes of a pipeline have.
    """

    shapes: Mapping[str, Shape]
    tied: Mapping[str, str]
    parameters: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()
    outputs: int | None = None
    elsewhere: Collection[str] = ()

    @staticmethod
    def of(model: nn.Module, outputs: int | None, elsewhere: Collection[str] = ()) -> Live:
        """Return the tensors of a module."""
        state = {
            name: one for name, one in model.state_dict(keep_vars=True).items() if isinstance(one, Tensor)
        }
        first: dict[int, str] = {}
        tied = {name: first.setdefault(id(one), name) for name, one in state.items()}
        parameters = {name: one for name, one in state.items() if isinstance(one, nn.Parameter)}
        trained = {name for name, one in parameters.items() if one.requires_grad}
        shapes = {name: tuple(one.shape) for name, one in state.items()}
        return Live(shapes, tied, frozenset(parameters), frozenset(trained), outputs, frozenset(elsewhere))

    def has(self, name: str) -> bool:
        """Return whether a tensor is in the whole model."""
        return name in self.shapes or name in self.elsewhere


def converted(folder: Path) -> None:
    """Write the tensors of PyTorch's files in a folder, `*.pt`, as files of safetensors beside them.

    Raises:
        ModelError: One holds no weights, or more than tensors and plain values.
    """
    for file in sorted(folder.glob("*.pt")):
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ModelError(
                "the file holds objects whose loading executes code, which is never done; where you trust "
                "it, save its weights alone: torch.save(model.state_dict(), FILE)"
            ) from error
        except (RuntimeError, ValueError, EOFError, KeyError) as error:
            raise ModelError(f"this is not a file of torch.save: {error}") from error
        tensors = {name: one.contiguous().clone() for name, one in _weights_in(content).items()}
        save_file(tensors, file.with_suffix(".safetensors"))
        file.unlink()


def _weights_in(content: Any) -> dict[str, Tensor]:
    """Return the tensors of what `torch.save` has written: a state dict, or a mapping with one in it."""
    for within in (None, *_WITHIN):
        values = content if within is None else content.get(within)
        tensors = {
            str(name): one
            for name, one in (values.items() if isinstance(values, Mapping) else ())
            if isinstance(one, Tensor)
        }
        if tensors:
            return tensors
        if not isinstance(content, Mapping):
            break
    raise ModelError(
        f"the file holds no weights, but {_kind(content)}; save torch.save(model.state_dict(), FILE)"
    )


def _kind(content: Any) -> str:
    keys = f" with {', '.join(map(str, list(content)[:5]))}" if isinstance(content, Mapping) else ""
    return f"a {type(content).__name__}{keys}"


def start_of(folder: Path, live: Live, options: InitFromConfig) -> Start:
    """Return which tensors of the files in a folder a model takes.

    Raises:
        ModelError: A name fits nothing, or a shape does not.
    """
    try:
        saved = shapes_of(folder, WEIGHTS_FILE)
    except SafetensorError as error:
        raise ModelError(f"this is not a safetensors file: {error}") from error
    names, renamed = _renamed(saved, live, options.rename or {})
    skipped = _skipped(names, live, options.skip)
    chosen = {one: name for one, name in names.items() if name in live.shapes and name not in skipped}
    if twice := [name for name, count in Counter(chosen.values()).items() if count > 1]:
        both = [one for one, name in chosen.items() if name == twice[0]]
        raise ModelError(f"{' and '.join(both)} would both be {twice[0]}; skip one, or rename it otherwise")
    head = _new_head({name: saved[one] for one, name in chosen.items()}, live)
    chosen = {one: name for one, name in chosen.items() if name not in head}
    have = {live.tied[name] for name in (*chosen.values(), *head)}
    missing = [
        name
        for name in live.shapes
        if live.tied[name] not in have and name not in skipped and not name.startswith(_LOSSES)
    ]
    if (folder / ADAPTERS).is_file():  # the weights that they adapt are in no such folder
        missing = [name for name in missing if name in live.trained]
    unused = [one for one, name in names.items() if not live.has(name) and name not in skipped]
    record = LoadedWeights(
        loaded=len(chosen),
        renamed=dict(Counter(rule for one, rule in renamed.items() if one in chosen)),
        skipped=sorted(skipped),
        new_head=sorted(head),
        missing=sorted(missing),
        unused=sorted(unused),
    )
    _check(record, saved, live, strict=options.strict)
    own = {name: shape for name, shape in saved.items() if name not in live.elsewhere}
    is_whole = own == dict(live.shapes) and not (renamed or skipped)
    return Start(chosen, record, is_whole)


def _renamed(
    saved: Mapping[str, Shape], live: Live, rules: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the model's name of each saved tensor, and what was done to those that had another one.

    Raises:
        ModelError: A rule fits no name, or is no regular expression.
    """
    names: dict[str, str] = {}
    done: dict[str, str] = {}
    used: set[str] = set()
    for one in saved:
        name, rule = one, ""
        for plain, (old, new) in product((one, *_without_prefixes(one)), rules.items()):
            if (changed := _changed(plain, old, new)) is not None:
                name, rule = changed, f"{old} -> {new}"
                used.add(old)
                break
        if not live.has(name):
            found = next(((to, how) for to, how in _forms(name) if live.has(to)), None)
            if found is not None:
                name, rule = found[0], ", ".join(filter(None, (rule, found[1])))
        names[one] = name
        if rule:
            done[one] = rule
    if unmatched := [old for old in rules if old not in used]:
        raise ModelError(
            f"rename: {unmatched[0]!r} matches no tensor of the source; {nearest(unmatched[0], saved)}"
        )
    return names, done


def _changed(name: str, old: str, new: str) -> str | None:
    """Return a name after a rule; None if it does not fit."""
    if _PLAIN.fullmatch(old):
        old, new = old.strip("."), new.strip(".")
        if name == old:
            return new
        return f"{new}.{name[len(old) + 1 :]}".lstrip(".") if name.startswith(f"{old}.") else None
    try:
        changed, count = re.subn(old, new, name)
    except (re.error, IndexError) as error:
        raise ModelError(f"rename: {old!r} -> {new!r} is no regular expression: {error}") from error
    return changed if count else None


def _without_prefixes(name: str) -> Iterator[str]:
    while prefix := next((one for one in _PREFIXES if name.startswith(one)), None):
        name = name.removeprefix(prefix)
        yield name


def _forms(name: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a tensor has without what wrappers put before it, and as an adapter of peft."""
    for plain in _without_prefixes(name):
        yield plain, f"without {name.removesuffix(plain)}"
    if "_orig_mod." in name:
        yield name.replace("_orig_mod.", ""), "without _orig_mod."
    if (adapter := _ADAPTER.sub(r".\1.default\2", name)) != name:
        yield adapter, "as the adapter default"
    layer, _, leaf = name.rpartition(".")
    yield f"{layer}.modules_to_save.default.{leaf}", "as a saved module of the adapter default"


def _skipped(names: Mapping[str, str], live: Live, patterns: Sequence[str]) -> set[str]:
    """Return the names of the tensors, of the model or the source, that patterns match.

    Raises:
        ModelError: A pattern matches none.
    """
    known = dict.fromkeys((*live.shapes, *live.elsewhere, *names.values()))
    skipped: set[str] = set()
    for pattern in patterns:
        own = matching(pattern, known)
        if not own:
            raise ModelError(f"skip: {pattern!r} matches no tensor; {nearest(pattern, known)}")
        skipped |= own
    return skipped


def _new_head(saved: Mapping[str, Shape], live: Live) -> set[str]:
    """Return the tensors of the model's last layer, if the source has it for another number of classes.

    Raises:
        ModelError: Other shapes differ, too.
    """
    differing = [name for name, shape in saved.items() if shape != live.shapes[name]]
    layers = {name.rpartition(".")[0] for name in differing}
    is_head = len(layers) == 1 and all(
        saved[name] and live.shapes[name] == (live.outputs, *saved[name][1:]) for name in differing
    )
    if differing and not is_head:
        first, skip = differing[0], sorted(layers - {""}) or differing
        grown = GROWN if live.parameters.isdisjoint(differing) else ""
        raise ModelError(
            f"the weights do not fit the model: size mismatch for {first}: {saved[first]} in the source, "
            f"{live.shapes[first]} in the model{grown}; to keep those of the model: "
            f"skip: [{', '.join(skip[:_LISTED])}]"
        )
    return set(differing)


def _check(record: LoadedWeights, saved: Collection[str], live: Live, *, strict: bool) -> None:
    """Refuse a source that has nothing for a model; if `strict`, one that has too much or too little.

    Raises:
        ModelError: It is one.
    """
    advice = "give other names with rename, or leave them out with skip, or set strict: false"
    if not record.loaded:
        raise ModelError(
            f"the weights do not fit the model: none of its tensors is in the source, which has "
            f"{some(sorted(saved))}; the model has {some(sorted(live.shapes))}: {advice}"
        )
    if strict and record.unused:
        first = record.unused[0]
        raise ModelError(
            f"the weights do not fit the model: it does not have {some(record.unused)} (to {first}, "
            f"{nearest(first, live.shapes)}): {advice}"
        )
    if strict and record.missing:
        first = record.missing[0]
        raise ModelError(
            f"the weights do not fit the model: the source lacks {some(record.missing)} (to {first}, "
            f"{nearest(first, saved)}): {advice}"
        )


def check_adapters(folder: Path, lora: Mapping[str, Any] | None) -> None:
    """Check that the adapters in a folder are scaled as the model's own will be.

    Raises:
        ModelError: They are not, or the model has none.
    """
    if not (folder / ADAPTERS).is_file():
        return
    try:
        config = json.loads((folder / ADAPTERS).read_text(encoding="utf-8"))
        theirs = {"r": config["r"], "alpha": config["lora_alpha"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{ADAPTERS} is not what peft writes for LoRA: {error}") from error
    wanted = f"model.lora: {{r: {theirs['r']}, alpha: {theirs['alpha']}}}"
    if config.get("use_rslora") or config.get("use_dora"):
        raise ModelError("the folder holds adapters of rsLoRA or DoRA, which model.lora has not")
    if lora is None:
        raise ModelError(f"the folder holds adapters (peft) without the model: write {wanted}")
    if theirs != {key: lora[key] for key in theirs}:
        raise ModelError(
            f"the adapters are scaled by {theirs['alpha']} / {theirs['r']}, and those of the model by "
            f"{lora['alpha']} / {lora['r']}: write {wanted}"
        )
