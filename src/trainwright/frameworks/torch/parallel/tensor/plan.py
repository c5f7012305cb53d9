"""Plans say which layers of a model are split, and are checked against its shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.patterns import matching_modules

KEY = "distributed.plan"
VIRTUAL = "distributed.virtual.tensor"
COLWISE, ROWWISE = "colwise", "rowwise"


@dataclass(frozen=True)
class Plan:
    """A plan of tensor parallelism, by patterns of module names in shell style.

    Attributes:
        colwise: Linear layers whose outputs are split: each slice has some of the features.
        rowwise: Linear layers whose inputs are split: the outputs of the slices are added up.
        vocabulary: Output layers that are split by tokens. In training they return `SplitLogits`, which the
            loss of tokens takes.
        sequence: Modules that compute each slice of the tokens, (rows, length, ...), by itself, as a norm.
        divided: Integer attributes of modules that a slice has a share of, such as `num_heads`, by pattern.
        sizes: Further numbers that the slices must divide, by what they are called in messages.
        openings: Modules whose outputs stay slices until a row-wise layer of another module takes them; they
            may take slices themselves.
        fused: The number of layers that a column-wise one has side by side, as queries, keys and values, by
            its name. A slice has a part of each, and each process all of their parameters.
    """

    colwise: Sequence[str]
    rowwise: Sequence[str]
    vocabulary: Sequence[str] = ()
    sequence: Sequence[str] = ()
    divided: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    openings: Sequence[str] = ()
    fused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Region:
    """A module that is computed once for each slice: what lies between column- and row-wise layers.

    Attributes:
        name: Of the module.
        output: The name of the row-wise layer, whose outputs are those of the region; None: of an opening,
            whose outputs stay slices. A layer that takes slices of an opening is a region by itself.
        styles: `colwise` or `rowwise` by the name of the layer.
        divided: (module, attribute) of the integers that a slice has a share of.
        fused: How many layers a column-wise one is, by its name, if it is several.
    """

    name: str
    output: str | None
    styles: Mapping[str, str]
    divided: Sequence[tuple[str, str]] = ()
    fused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The split modules of a model, as a plan matches them.

    Attributes:
        regions: Modules that are computed in slices of heads or features.
        vocabulary: The names of output layers.
        sequence: The names of modules that are computed in slices of the tokens.
    """

    regions: Sequence[Region]
    vocabulary: Sequence[str]
    sequence: Sequence[str]


def split_dims(module: nn.Module, style: str) -> dict[str, int]:
    """Return along which dimension each parameter of a linear layer is split; others are whole."""
    # Weights are (outputs, inputs); in Conv1D of transformers, they are the other way round.
    is_transposed = is_conv1d(module)
    dims = {"weight": int(is_transposed) if style == COLWISE else 1 - int(is_transposed)}
    if style == COLWISE and getattr(module, "bias", None) is not None:
        dims["bias"] = 0
    return dims


def is_conv1d(module: nn.Module) -> bool:
    """Return whether a module is the linear layer of transformers' GPT-2."""
    return type(module).__name__ == "Conv1D"


def layout_of(module: nn.Module, plan: Plan, virtual: int) -> Layout:
    """Match a plan to a model, which may be on the device meta.

    Args:
        module: The model.
        plan: The plan.
        virtual: The number of slices of a layer.

    Raises:
        ModelError: A pattern matches nothing, a layer cannot be split, or so many slices do not divide it.
    """
    styles: dict[str, str] = {}
    for style, patterns in ((COLWISE, plan.colwise), (ROWWISE, plan.rowwise)):
        for name in matching_modules(module, patterns, f"{KEY}.{style}"):
            if name in styles:
                raise ModelError(f"{KEY}: {name} is matched by both {COLWISE} and {ROWWISE}; remove one")
            styles[name] = style
    divided = [
        (name, attribute)
        for pattern, attributes in plan.divided.items()
        for name in matching_modules(module, [pattern], f"{KEY}.divided")
        for attribute in attributes
    ]
    for name, style in styles.items():
        _check_linear(name, module.get_submodule(name), style)
    regions = list(_regions(module, plan, styles, divided))
    vocabulary = matching_modules(module, plan.vocabulary, f"{KEY}.vocabulary") if plan.vocabulary else []
    for name in vocabulary:
        _check_linear(name, module.get_submodule(name), COLWISE)
    split = styles | dict.fromkeys(vocabulary, COLWISE)
    _check_shared(module, split)
    _check_sizes(module, plan, split, divided, virtual)
    sequence = matching_modules(module, plan.sequence, f"{KEY}.sequence") if plan.sequence else []
    for region in regions:
        if inside := [one for one in sequence if _is_in(one, region.name) or _is_in(region.name, one)]:
            raise ModelError(
                f"{KEY}.sequence: {inside[0]} is in {region.name or 'the model'}, which is split by heads "
                "or features; name modules between such"
            )
        if inside := [one for one in vocabulary if _is_in(one, region.name)]:
            raise ModelError(
                f"{KEY}.vocabulary: {inside[0]} is in {region.name or 'the model'}, which is split"
            )
    return Layout(regions, vocabulary, sequence)


def _check_linear(name: str, layer: nn.Module, style: str) -> None:
    weight = getattr(layer, "weight", None)
    own = {one for one, parameter in layer.named_parameters() if parameter is not None}
    is_linear = isinstance(layer, nn.Linear) or is_conv1d(layer)
    if not is_linear or weight is None or weight.dim() != 2 or own - {"weight", "bias"}:
        raise ModelError(
            f"{KEY}.{style}: {name} is a {type(layer).__name__}, which cannot be split: name linear layers"
        )


def _regions(
    module: nn.Module, plan: Plan, styles: Mapping[str, str], divided: Sequence[tuple[str, str]]
) -> Iterator[Region]:
    """Yield the regions: of each row-wise layer, the nearest module around it with a column-wise one.

    Where that lies in an opening, the row-wise layer is a region by itself, as the opening is.

    Raises:
        ModelError: Layers do not form regions, each with one row-wise layer at its end.
    """
    openings = matching_modules(module, plan.openings, f"{KEY}.openings") if plan.openings else []
    outputs = _outputs(styles, openings)
    for region, names in outputs.items():
        where = region or "the model"
        if len(set(names)) > 1:
            raise ModelError(
                f"{KEY}: {where} has several {ROWWISE} layers ({', '.join(names)}): a slice is computed up "
                "to one, so attention and feed-forward layers must be modules of their own, without norm "
                "and residual"
            )
        if inner := [one for one in (*outputs, *openings) if one != region and _is_in(one, region)]:
            raise ModelError(f"{KEY}: the split module {inner[0]} lies in another one, {where}")
    # Conv1D gives its outputs a shape of its own.
    divided = [
        *divided,
        *(
            (name, "nf")
            for name, style in styles.items()
            if style == COLWISE and is_conv1d(module.get_submodule(name))
        ),
    ]
    ends = {region: names[0] for region, names in outputs.items()}
    for region, output in (*dict.fromkeys(openings).items(), *ends.items()):
        for name, part in module.get_submodule(region).named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                raise ModelError(
                    f"{KEY}: {region}.{name} has running statistics, which slices cannot share; leave "
                    f"{region} out"
                )
        own = {name: style for name, style in styles.items() if _is_within(name, region)}
        yield Region(
            region,
            output,
            own,
            [(name, attribute) for name, attribute in divided if _is_within(name, region)],
            {name: count for name, count in plan.fused.items() if name in own},
        )


def _outputs(styles: Mapping[str, str], openings: Sequence[str]) -> dict[str, list[str]]:
    """Return the row-wise layers by the region that they end.

    Raises:
        ModelError: A layer has none of the other style to go with it.
    """
    columns = [name for name, style in styles.items() if style == COLWISE]
    outputs: dict[str, list[str]] = {}
    for name in (name for name, style in styles.items() if style == ROWWISE):
        around = next((one for one in _around(name) if any(_is_in(column, one) for column in columns)), None)
        if around is None:
            raise ModelError(f"{KEY}.{ROWWISE}: no module around {name} has a {COLWISE} layer")
        layer = _with_adapter(name)
        takes_slices = any(_is_in(one, around) for one in openings)
        outputs.setdefault(layer if takes_slices else around, []).append(layer)
    for name in columns:
        if not any(_is_within(name, region) for region in (*outputs, *openings)):
            parent = name.rpartition(".")[0] or "the model"
            raise ModelError(
                f"{KEY}.{COLWISE}: {name} has no {ROWWISE} layer after it in {parent}, to add up what "
                "the slices give"
            )
    return outputs


def _check_shared(module: nn.Module, styles: Mapping[str, str]) -> None:
    """Refuse to split parameters that have another name, too."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, style in styles.items():
        layer = module.get_submodule(name)
        for own in split_dims(layer, style):
            if len(shared := names[id(getattr(layer, own))]) > 1:
                raise ModelError(
                    f"{KEY}.{style}: {' and '.join(shared)} are one tensor, which cannot be split"
                )


def _check_sizes(
    module: nn.Module,
    plan: Plan,
    styles: Mapping[str, str],
    divided: Sequence[tuple[str, str]],
    virtual: int,
) -> None:
    """Check that the slices divide all sizes.

    Raises:
        ModelError: They do not; it says which numbers do.
    """
    sizes: list[tuple[str, Any]] = list(plan.sizes.items())
    for name, attribute in divided:
        sizes.append((f"{name}.{attribute}", getattr(module.get_submodule(name), attribute, None)))
    for name, style in styles.items():
        layer = module.get_submodule(name)
        size = layer.weight.shape[split_dims(layer, style)["weight"]]  # type: ignore[index]
        size //= plan.fused.get(name, 1)
        sizes.append((f"the {'outputs' if style == COLWISE else 'inputs'} of {name}", size))
    for what, size in sizes:
        if not isinstance(size, int) or isinstance(size, bool):
            raise ModelError(f"{KEY}.divided: {what} is not an integer")
    whole = math.gcd(*(size for _, size in sizes))
    for what, size in sizes:
        if size % virtual:
            fitting = [str(2**power) for power in range(whole.bit_length()) if not whole % 2**power]
            raise ModelError(
                f"{VIRTUAL}: {virtual} does not divide {what} ({size}); for this model: {', '.join(fitting)}"
            )


def _around(name: str) -> Iterator[str]:
    """Yield the names of the modules that a module is in, the innermost first; the model itself is ''."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _is_in(name: str, module: str) -> bool:
    return not module or name.startswith(f"{module}.")


def _is_within(name: str, module: str) -> bool:
    return name == module or _is_in(name, module)


def _with_adapter(name: str) -> str:
    """Return the name of a row-wise layer; of one in an adapter of peft, that of the layer as a whole."""
    return name.removesuffix(".base_layer").partition(".lora_A.")[0]
