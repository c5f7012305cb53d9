"""Make the JSON Schema (draft 2020-12) of a config file, with which editors complete and check.

It describes what a user may write, not the long form that `load` makes of it: a name in place of a mapping,
options beside `type`, `${env:NAME}` in place of a number, `extends`. Other spellings of keys are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from trainwright.config.adapters import Adapters, Kind
from trainwright.config.fields import Section, TypedSection
from trainwright.config.schema import (
    DataConfig,
    ModelConfig,
    NamedOptimizer,
    OptimizerConfig,
    RunConfig,
    TrackerConfig,
)
from trainwright.config.spellings import METRICS, Spellings

Schema = dict[str, Any]

TYPED: tuple[tuple[type[TypedSection], Kind], ...] = (
    (DataConfig, "dataset"),
    (ModelConfig, "model"),
    (OptimizerConfig, "optimizer"),
    (NamedOptimizer, "optimizer"),
    (TrackerConfig, "tracker"),
)
VARIABLE: Schema = {"type": "string", "pattern": r"^\$\{env:[A-Za-z_][A-Za-z0-9_]*\}$"}
IMPORT_PATH: Schema = {"type": "string", "pattern": ":", "description": "package.module:Name"}
TYPES = {"type", "anyOf", "enum", "items", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
LEAVES = ("integer", "number", "boolean")


def json_schema(adapters: Adapters | None = None) -> Schema:
    """Return the schema, with the names and options of the installed adapters."""
    schema = RunConfig.model_json_schema()
    definitions: Schema = schema["$defs"]
    _soften(schema)
    _schedulers(schema)
    _transforms(schema)
    _short_forms(definitions)
    if adapters is not None:
        _names(definitions, adapters)
    for section, kind in TYPED:
        _typed(definitions, section, kind, adapters)
    for name in _optional_sections():
        schema["properties"][name] = {"anyOf": [schema["properties"][name], {"type": "null"}]}
    definitions["Variable"] = VARIABLE
    schema["properties"] = {
        "extends": {
            "type": "string",
            "description": "another config, relative to this one, whose values this one overrides",
        },
        **schema["properties"],
    }
    del schema["required"]  # the model may come from the base
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Trainwright config",
    }


def _optional_sections() -> list[str]:
    fields = RunConfig.model_fields.items()
    return [
        name
        for name, field in fields
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section) and name != "model"
    ]


def _soften(schema: Any) -> None:
    """Allow `${env:NAME}` wherever a number, a boolean or one of a few words is expected."""
    children = schema.values() if isinstance(schema, dict) else schema
    for child in children:
        if isinstance(child, dict | list):
            _soften(child)
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return
    for name, leaf in schema["properties"].items():
        if leaf.get("type") in LEAVES or "enum" in leaf or "pattern" in leaf:
            kept = {
                key: leaf.pop(key) for key in ("description", "default", "title", "affects") if key in leaf
            }
            schema["properties"][name] = {**kept, "anyOf": [leaf, {"$ref": "#/$defs/Variable"}]}
        elif "anyOf" in leaf:
            leaf["anyOf"].append({"$ref": "#/$defs/Variable"})


def _schedulers(schema: Schema) -> None:
    """Allow a name, or a mapping whose `type` may be left out for the default."""
    definitions = schema["$defs"]
    scheduler = definitions["TrainingConfig"]["properties"]["scheduler"]
    tags: dict[str, str] = scheduler.pop("discriminator")["mapping"]
    for tag, reference in tags.items():
        if tag != "constant":
            member = definitions[reference.rpartition("/")[2]]
            member["required"] = sorted({"type", *member.get("required", ())})
    names = [
        tag
        for tag, ref in tags.items()
        if definitions[ref.rpartition("/")[2]].get("required", ["type"]) == ["type"]
    ]
    own = {**IMPORT_PATH, "description": "a schedule of your own, as package.module:name"}
    by_path = {"type": "object", "properties": {"type": own}, "required": ["type"]}
    scheduler["anyOf"] = [{"enum": names}, own, by_path, *scheduler.pop("oneOf")]


def _short_forms(definitions: Schema) -> None:
    """Allow the values that are short for sections: a decay, a pattern, weights to draw by, a loss."""
    number, text = {"type": "number"}, {"type": "string"}
    texts = ("FreezeConfig", "HeadConfig", "InitFromConfig", "SamplingConfig")
    for name, short in (("EmaConfig", number), *((name, text) for name in texts)):
        own = definitions[name]
        definitions[name] = {"anyOf": [short, own], "description": own.pop("description", "")}
    column = definitions["ColumnExpectation"]["properties"]
    column |= {"in": column.pop("one_of"), "not_in": column.pop("none_of")}
    definitions["ExpectConfig"]["additionalProperties"] = {"$ref": "#/$defs/ColumnExpectation"}
    keys = definitions["TrainingConfig"]["properties"]
    for key in ("freeze", "activation_checkpointing"):
        own = keys[key]
        keys[key] = {"anyOf": [text, own], "description": own.pop("description", "")}


def _transforms(schema: Schema) -> None:
    """Allow a name, or a function of the user's, for each transform of images."""
    definitions = schema["$defs"]
    item = definitions["DataConfig"]["properties"]["transforms"]["items"]
    tags: dict[str, str] = item.pop("discriminator")["mapping"]
    for reference in tags.values():
        member = definitions[reference.rpartition("/")[2]]
        member["required"] = sorted({"type", *member.get("required", ())})
    own = {**IMPORT_PATH, "description": "a transform of your own, as package.module:name"}
    by_path = {"type": "object", "properties": {"type": own}, "required": ["type"]}
    item["anyOf"] = [{"enum": list(tags)}, own, by_path, *item.pop("oneOf")]


def _typed(definitions: Schema, section: type[TypedSection], kind: Kind, adapters: Adapters | None) -> None:
    """Describe a section with a `type`: a name, or a mapping with the options of that type."""
    own = definitions[section.__name__]
    own["additionalProperties"] = True  # restricted by type below
    names = list(adapters.names(kind)) if adapters is not None else []
    importable = [IMPORT_PATH] if kind in {"dataset", "model", "optimizer"} else []
    choice: Schema = {"anyOf": [{"enum": names}, *importable]} if names else {"type": "string"}
    own["properties"]["type"] = {
        **choice,
        "description": own["properties"]["type"].get("description", f"the {kind}"),
    }
    own["allOf"] = []
    for name in names:
        offered = _offered(kind, name, adapters) if adapters is not None else []
        if offered:
            own["allOf"].append(_options(definitions, own["properties"], name, offered))
    definitions[section.__name__] = {"anyOf": [choice, own], "description": own.pop("description", "")}


class Offered(NamedTuple):
    """The options of an adapter: a prefix for their definitions, and what other names of them mean."""

    prefix: str
    params: type[BaseModel]
    spellings: Spellings


def _offered(kind: Kind, name: str, adapters: Adapters) -> list[Offered]:
    """Return the options that have this name; several frameworks may have an optimizer `adam`."""
    frameworks = adapters.names("framework") if kind in ("model", "optimizer") else [""]
    having = [framework for framework in frameworks if name in adapters.names(kind, framework or None)]
    offered = []
    for framework in having:
        params = adapters.params(kind, name, framework or None)
        spellings = adapters.spellings(kind, name, framework) if framework else None
        if params is not None:
            offered.append(Offered(f"{kind}_{framework}_{name}_", params, spellings or Spellings()))
    return offered


def _options(definitions: Schema, own: Schema, name: str, offered: Sequence[Offered]) -> Schema:
    """Return the rule that allows the options of one of these, and no others, if `type` is this name."""
    inline: dict[str, list[Schema]] = {}
    for prefix, params, spellings in offered:
        options = params.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
        definitions.update({prefix + inner: schema for inner, schema in options.pop("$defs", {}).items()})
        _soften(options)
        options["properties"] = _spelled(options.get("properties", {}), spellings)
        definitions[prefix + "params"] = {**options, "required": []}
        for key in options.get("properties", {}):
            inline.setdefault(key, []).append({"$ref": f"#/$defs/{prefix}params/properties/{key}"})
    inside = [{"$ref": f"#/$defs/{one.prefix}params"} for one in offered]
    beside = {key: _any(options) for key, options in inline.items() if key not in own}
    return {
        "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
        "then": {
            "properties": {**dict.fromkeys(own, True), **beside, "params": _any(inside)},
            "additionalProperties": False,
        },
    }


def _spelled(options: Schema, spellings: Spellings) -> Schema:
    """Return the options with their other names, and those that set something of ours or have no effect."""
    others: Schema = {
        alias: {"description": f"another name of {option.partition('.')[0]}"}
        | ({} if "." in option else {key: options[option][key] for key in TYPES & options[option].keys()})
        for alias, option in spellings.aliases.items()
        if option.partition(".")[0] in options
    }
    others |= {name: {"description": f"sets {meant.key}"} for name, meant in spellings.settings.items()}
    others |= {name: {"description": reason} for name, reason in spellings.unused.items()}
    metrics = dict.fromkeys(set(METRICS) & {*others, "metric", "custom_metric"} if spellings.metrics else ())
    others |= {name: {"description": "metrics, which evaluation.metrics lists"} for name in metrics}
    others |= {
        option: {key: rule for key, rule in options[option].items() if key not in TYPES}
        for option in spellings.values
        if option in options
    }
    changed = {*metrics, *spellings.values}
    return options | {name: rule for name, rule in others.items() if name not in options or name in changed}


def _any(options: list[Schema]) -> Schema:
    return options[0] if len(options) == 1 else {"anyOf": options}


def _names(definitions: Schema, adapters: Adapters) -> None:
    """Enumerate the names of metrics and losses, which have no sections."""
    metrics = list(adapters.names("metric"))
    own: Schema = {"type": "string", "pattern": ":"}  # package.module:function
    of_quantile: Schema = {"type": "string", "pattern": r"^pinball_0?\.\d+$"}
    deciding = {"enum": ["val_loss", *(f"val_{name}" for name in metrics)]}
    of_own: Schema = {"type": "string", "pattern": r"^val_[^\W\d]\w*(\.\d+)?$"}
    for section in ("EarlyStoppingConfig", "PlateauSchedule", "CheckpointConfig"):
        definitions[section]["properties"]["metric"]["anyOf"] = [deciding, of_own]
    listed = definitions["EvaluationConfig"]["properties"]["metrics"]
    listed["anyOf"] = [
        {"type": "array", "items": {"anyOf": [{"enum": metrics}, of_quantile, own]}},
        {"type": "null"},
    ]
    loss = definitions["TrainingConfig"]["properties"]["loss"]
    names = {"enum": list(dict.fromkeys(["auto", *adapters.names("loss")]))}
    by_type: Schema = {"type": {"anyOf": [names, own]}}  # its options stand beside it
    loss["anyOf"] = [names, own, {"type": "object", "properties": by_type, "required": ["type"]}]
    definitions["DataConfig"]["properties"]["task"]["enum"] = ["auto", *adapters.names("task")]
