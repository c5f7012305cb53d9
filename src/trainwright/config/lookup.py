"""Check the names in a config, and the options of adapters, against the installed adapters."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from trainwright.config.adapters import Adapters, Kind
from trainwright.config.checks import DEFAULT_EPOCHS, check_import_path
from trainwright.config.fields import TypedSection
from trainwright.config.messages import validate
from trainwright.config.metrics import METRIC_KEYS, custom_name
from trainwright.config.normalize import tracking_items
from trainwright.config.other_models import OTHER_CLASSES, unknown_model
from trainwright.config.resolved import values
from trainwright.config.schema import (
    DataConfig,
    DistributedConfig,
    ModelConfig,
    NamedOptimizer,
    OptimizerConfig,
    TrackerConfig,
    TrainingConfig,
)
from trainwright.config.synonyms import LOSS_HINTS, OTHER_FILES, fold
from trainwright.config.tree import (
    DEFAULT,
    Node,
    Problems,
    Source,
    find,
    find_value,
    from_plain,
    join,
    mapping,
    plain,
    put,
)
from trainwright.config.tuning import SamplerConfig, TunerConfig
from trainwright.config.words import nearest, some
from trainwright.errors import InputError

# Strategies that split the model, as PyTorch, Lightning and Accelerate users write them, folded.
_SHARDED = re.compile(r"fsdp|fullyshard|deepspeed|zero|megatron|colossalai|tensorpar|pipelinepar|tp$|pp$")
_LENGTH = ("epochs", "max_steps")  # keys of `training`
_ROUNDS = ("n_estimators", "iterations", "max_iter")  # options of models that set how long they train
_ROUND_WORDS = frozenset(
    map(fold, (*_ROUNDS, "max_iters", "n_iter", "num_boost_round", "num_rounds", "num_iterations"))
)


class Lookup:
    """The check of one config against the adapters; it also fills in the defaults of their options."""

    def __init__(self, root: Node, adapters: Adapters, problems: Problems, unused: list[str]) -> None:
        self.root = root
        self.adapters = adapters
        self.problems = problems
        self.unused = unused
        self.named: dict[str, tuple[Kind, str, str | None]] = {}  # section -> kind, name, framework

    def run(self) -> None:
        """Check everything: collect the problems, and put the defaults into the tree."""
        self.name_data()
        known, framework = self.model()
        used = self.used(framework) if known else ()  # else each optimizer and loss would be unknown, too
        self.defaults(framework if known else None, used)
        if "optimizer" in used:
            self.optimizer(framework)
        if "loss" in used and (loss := find_value(self.root, "training.loss")) is not None:
            self.loss(loss, framework)
        if (strategy := find_value(self.root, "distributed.strategy")) is not None and self.known(
            "strategy", strategy, "distributed.strategy"
        ):
            self.strategy(strategy, framework if known else None)
        self.section("dataset", "data", DataConfig)
        if (task := find_value(self.root, "data.task")) is not None:
            self.known("task", task, "data.task", extra=("auto",))
        for key, _ in tracking_items(self.root):
            self.section("tracker", join("tracking", key), TrackerConfig)
        if (tuning := find_value(self.root, "tuning")) is not None and isinstance(tuning.value, dict):
            sampler = tuning.value.setdefault("sampler", Node({}, DEFAULT))
            mapping(sampler).setdefault("type", Node(SamplerConfig().type, DEFAULT))
            self.section("sampler", "tuning.sampler", SamplerConfig)
            self.section("tuner", "tuning.tuner", TunerConfig)
        if any(find_value(self.root, path) for path in ("evaluation.metrics", *METRIC_KEYS)):
            self.metrics()

    def model(self) -> tuple[bool, str | None]:
        """Return whether the model's framework is known, and its name.

        The name is None for a model class whose framework shows only when the class is imported.
        """
        chosen, node = find_value(self.root, "model.framework"), find_value(self.root, "model.type")
        framework = None
        if chosen is not None and isinstance(chosen.value, str):
            framework = chosen.value
            if not self.known("framework", chosen, "model.framework"):
                return False, None
        if node is None or not isinstance(node.value, str):
            return False, None
        named = self.adapters.framework_of(node.value)
        if ":" in node.value and named is None:
            # Not of a deeper module: runs that a callback recorded name the class of their model so.
            if (others := OTHER_CLASSES.get(node.value.partition(":")[0])) is not None:
                self.problems.report(f"got {node.value!r}; {others}", "model.type", node.source)
                return False, None
            return True, framework
        if framework is None:
            framework = named
        if framework is None or not self.adapters.has("model", node.value, framework):
            self.problems.report(
                unknown_model(node.value, framework, self.adapters), "model.type", node.source
            )
            return False, None
        self.named["model"] = ("model", node.value, framework)
        self.options("model", node.value, "model", ModelConfig, framework)
        return True, framework

    def option(self, section: str, name: str) -> str | None:
        """Return the dotted key of the option of the model, or of the data, that a name means, or None."""
        if section not in self.named:
            return None
        kind, chosen, framework = self.named[section]
        options = self.adapters.params(kind, chosen, framework)
        spellings = self.adapters.spellings("model", chosen, framework) if kind == "model" else None
        meant = [spellings.aliases.get(name, name) if spellings is not None else name]
        if section == "model" and fold(name) in _ROUND_WORDS:
            meant += _ROUNDS
        known = () if options is None else options.model_fields
        return next((f"{section}.{one}" for one in meant if one in known), None)

    def used(self, framework: str | None) -> Collection[str]:
        """Return the keys of `training` that have an effect; collect the others that are set."""
        training, model = find_value(self.root, "training"), find_value(self.root, "model.type")
        if framework is None or model is None:
            return TrainingConfig.model_fields
        params = find_value(self.root, "model.params")
        used = self.adapters.training_keys(
            framework, str(model.value), plain(params) if params is not None else {}
        )
        given = mapping(training)
        # As in `best.yaml`: nobody has chosen the values that are the defaults.
        written = {key for key, node in given.items() if node.source != DEFAULT}
        is_whole = written >= TrainingConfig.model_fields.keys() - {"loss_params"}  # which `loss` may hold
        for key, node in given.items():
            if (
                key in TrainingConfig.model_fields
                and key not in used
                and node.value is not None
                and node.source != DEFAULT
                and not (is_whole and _is_default(key, node))
            ):
                self._no_effect(key, node, str(model.value), framework)
        return used

    def strategy(self, node: Node, framework: str | None) -> None:
        """Say that a strategy does nothing for a model that is trained in one process."""
        model, written = find_value(self.root, "model.type"), mapping(find_value(self.root, "distributed"))
        # As for `training`: a file that writes down all defaults has chosen none.
        is_whole = written.keys() >= DistributedConfig.model_fields.keys()
        if framework is None or model is None or node.source == DEFAULT or is_whole:
            return
        if not self.adapters.has_processes(framework):
            self.unused.append(
                f"{node.key_source}: distributed.strategy has no effect on {model.value} ({framework}), "
                "which is trained in one process"
            )

    def _instead(self, key: str) -> str:
        """Return which key of the model has the place of one of `training`."""
        params = mapping(find_value(self.root, "model.params"))
        rounds = next((name for name in _ROUNDS if name in params), None) if key in _LENGTH else None
        meant = f"model.{rounds}" if rounds else self.option("model", key)
        return f"; {meant} sets it" if meant else ""

    def _no_effect(self, key: str, node: Node, model: str, framework: str) -> None:
        """Say that a key of `training` does nothing for a model; a user's own loss is a problem."""
        options = self.adapters.params("model", model, framework)
        own = [name for name in ("objective", "loss") if options is not None and name in options.model_fields]
        if key == "loss" and node.value != "auto":
            where = f"; its loss is model.params.{own[0]}" if own else ""
            if ":" in str(node.value):
                what = f"{node.value} given, but {model} ({framework}) does not take it here{where}"
                self.problems.report(what, "training.loss", node.source)
                return
        else:
            where = self._instead(key)
        self.unused.append(f"{node.key_source}: training.{key} has no effect on {model} ({framework}){where}")

    def defaults(self, framework: str | None, used: Collection[str]) -> None:
        """Fill in the defaults of the framework, and how long to train if nothing says so."""
        node = find_value(self.root, "model.type")
        own = (
            self.adapters.defaults(framework, str(node.value))
            if framework is not None and node is not None
            else {}
        )
        for path, value in own.items():
            section = path.split(".")[0]
            if (
                path != "training.epochs"
                and find(self.root, path) is None
                and (section != "data" or find_value(self.root, "data"))
            ):
                put(self.root, path, Node(value, Source(f"default (of {framework})")))
        length = [find_value(self.root, f"training.{key}") for key in ("epochs", "max_steps")]
        if length == [None, None] and (not used or "epochs" in used):
            put(self.root, "training.epochs", Node(own.get("training.epochs", DEFAULT_EPOCHS), DEFAULT))

    def optimizer(self, framework: str | None) -> None:
        """Check the optimizer, or fill in the default one."""
        default = OptimizerConfig.model_fields["type"].default
        if not self.adapters.has("optimizer", default, framework):
            names = self.adapters.names("optimizer", framework)
            if not names and find_value(self.root, "training.optimizer.type") is None:
                return
            default = next(iter(names), default)  # a framework's own first one
        if find_value(self.root, "training.optimizer") is None:
            training = mapping(self.root).setdefault("training", Node({}, DEFAULT))
            mapping(training)["optimizer"] = Node({"type": Node(default, DEFAULT)}, DEFAULT)
        mapping(find_value(self.root, "training.optimizer")).setdefault("type", Node(default, DEFAULT))
        self.section("optimizer", "training.optimizer", OptimizerConfig, framework)
        for name, node in mapping(find_value(self.root, "training.optimizers")).items():
            chosen = find_value(self.root, "training.optimizer.type")
            if isinstance(node.value, dict) and chosen is not None:
                node.value.setdefault("type", Node(chosen.value, DEFAULT))
            self.section("optimizer", f"training.optimizers.{name}", NamedOptimizer, framework)
        if (groups := find_value(self.root, "training.parameter_groups")) is not None:
            self.groups(groups, framework)

    def groups(self, groups: Node, framework: str | None) -> None:
        """Check the options of the optimizer that parameter groups have of their own."""
        name = find_value(self.root, "training.optimizer.type")
        if name is None or ":" in str(name.value):
            return
        for index, item in enumerate(groups.value if isinstance(groups.value, list) else ()):
            own = mapping(item).get("options")
            if own is not None and isinstance(own.value, dict):
                options = self._options_of("optimizer", str(name.value), framework, own)
                if options is not None:
                    validate(options, own, f"training.parameter_groups.{index}.options", self.problems)

    def loss(self, node: Node, framework: str | None) -> None:
        """Check the name of the loss."""
        if ":" in str(node.value):  # package.module:function is imported later
            check_import_path(node, "training.loss", self.problems)
            return
        if (params := find_value(self.root, "training.loss_params")) is not None and params.value:
            message = f"{node.value} is a loss of ours, whose options are keys of training; leave it out"
            self.problems.report(message, "training.loss_params", params.source)
        hint = LOSS_HINTS.get(re.sub(r"[-_ ]", "", str(node.value).lower()).removesuffix("loss"))
        if hint is not None and not self.adapters.has("loss", str(node.value), framework):
            message = f"no loss is called {node.template or node.value!r} here; {hint}"
            self.problems.report(message, "training.loss", node.source)
        else:
            self.known("loss", node, "training.loss", framework, extra=("auto",))

    def section(
        self, kind: Kind, path: str, section: type[TypedSection], framework: str | None = None
    ) -> None:
        """Check `type`, then the options, of one section."""
        node = find_value(self.root, f"{path}.type")
        if node is None or not isinstance(node.value, str) or not node.value:
            return
        if kind in ("dataset", "optimizer") and ":" in node.value:
            return  # package.module:name: its options are arguments of the function or class
        if self.known(kind, node, f"{path}.type", framework):
            self.named[path] = (kind, node.value, framework)
            self.options(kind, node.value, path, section, framework)

    def name_data(self) -> None:
        """Note the type of the data, which is checked later, for hints at wrong options of the model."""
        node = find_value(self.root, "data.type")
        if node is None or not isinstance(node.value, str) or not node.value or ":" in node.value:
            return
        with suppress(InputError):  # a plugin that cannot be used, which is reported later
            if self.adapters.has("dataset", node.value):
                self.named["data"] = ("dataset", node.value, None)

    def known(
        self, kind: Kind, node: Node, path: str, framework: str | None = None, extra: Sequence[str] = ()
    ) -> bool:
        """Return whether an adapter of this name is installed; report it if not."""
        if not isinstance(node.value, str) or node.value in extra:
            return True  # validation reports what is not text
        # A value that was derived from another key has no line of its own: point at that key.
        source = node.key if node.key is not None and not node.source.line else node.source
        try:
            if self.adapters.has(kind, node.value, framework):
                return True
        except InputError as error:  # a plugin that cannot be used
            self.problems.report(str(error), path, source)
            return False
        names = list(dict.fromkeys([*extra, *self.adapters.names(kind, framework)]))
        of = f" of {framework}" if framework else ""
        parts = [f"unknown {kind} {node.template or node.value!r}{of}"]
        parts += self.problems.once(
            f"known: {some(names, node.value, kind) or 'none, as none is installed'}", (kind, framework)
        )
        near = nearest(node.value, names)
        if kind == "tracker" and not near:
            near = "; for another one, write an adapter (docs/adapters.md)"
        if kind == "strategy" and _SHARDED.match(fold(node.value.rpartition(".")[2])):
            near = (
                "; write fsdp, in which the processes share the parameters out (as ZeRO 3 does), or ddp with "
                "distributed.tensor or distributed.pipeline, which split the layers"
            )
        if kind == "optimizer":
            near += "; under torch, another one is named by its class: package.module:Class"
        if kind == "dataset" and PurePath(node.value).suffix:
            hint = OTHER_FILES.get(PurePath(node.value).suffix.lower())
            near = f"; {hint or f'to read a file, write data: {{path: {node.value}, target: COLUMN}}'}"
        message = "; ".join(parts) + near
        self.problems.report("; ".join([message, *self.adapters.broken(kind)]), path, source)
        return False

    def options(
        self, kind: Kind, name: str, path: str, section: type[TypedSection], framework: str | None
    ) -> None:
        """Validate `params`, and fill in the defaults."""
        holder = find_value(self.root, path)
        params = mapping(holder).get("params")
        model = self._options_of(kind, name, framework, params)
        if model is None or holder is None:
            return
        if params is None or params.value is None:
            params = Node({}, holder.source, holder.key, inline=True)
        if not isinstance(params.value, dict):
            return  # validation reports it
        siblings = [field for field in section.model_fields if field != "params"]
        is_listed = framework is None or (kind == "model" and self.adapters.framework_of(name) == framework)
        listed = f"{kind}.{name}" if is_listed and kind != "optimizer" else ""
        options = validate(model, params, f"{path}.params", self.problems, siblings, self.option, listed)
        if options is not None:
            _fill(params, values(options))
            mapping(holder)["params"] = params

    def _options_of(
        self, kind: Kind, name: str, framework: str | None, params: Node | None
    ) -> type[BaseModel] | None:
        """Return the options of an adapter, or None if it has none.

        Several frameworks may have an optimizer of this name. If the framework is not known, the options of
        the first one that accepts the given values are returned.
        """
        frameworks = (
            self.adapters.names("framework") if kind == "optimizer" and framework is None else [framework]
        )
        entered = params if params is not None and isinstance(params.value, dict) else Node({}, DEFAULT)
        first = None
        for one in frameworks:
            if (options := self.adapters.params(kind, name, one)) is not None:
                first = first or options
                if validate(options, entered.copy(), "", Problems(), []) is not None:
                    return options
        return first

    def metrics(self) -> None:
        """Check the names in `evaluation.metrics`, and those of the metrics that decide something."""
        node = find_value(self.root, "evaluation.metrics")
        wanted = node.value if node is not None and isinstance(node.value, list) else []
        own: dict[str, str] = {}
        for index, item in enumerate(wanted):
            path = f"evaluation.metrics.{index}"
            if isinstance(item.value, str) and ":" in item.value:
                self.custom_metric(item, path, own)
            else:
                self.metric(item, item.value, path)
        heads = tuple(f"_{name}" for name in mapping(find_value(self.root, "training.heads")))
        for path in METRIC_KEYS:
            chosen = find_value(self.root, path)
            name = str(chosen.value) if chosen is not None else ""
            if chosen is None or name.removeprefix("val_") in own or name.endswith(heads):
                continue
            if name.startswith("val_"):
                self.metric(chosen, name.removeprefix("val_"), path)

    def custom_metric(self, node: Node, path: str, own: dict[str, str]) -> None:
        """Check the import path of a user's own metric, and add its name to those of the others."""
        check_import_path(node, path, self.problems)
        name = custom_name(str(node.value))
        taken = own.get(name, "a metric of Trainwright" if name in self.adapters.names("metric") else None)
        if name == "loss" or (taken is not None and taken != node.value):
            ours = f"write {name}, or " if name in self.adapters.names("metric") else ""
            also = taken or "the loss"
            message = f"{node.value!r} would be called {name!r}, as is {also}; {ours}rename the function"
            self.problems.report(message, path, node.source)
        own[name] = str(node.value)

    def metric(self, node: Node, name: Any, path: str) -> None:
        """Check the name of one metric."""
        listing = path.startswith("evaluation")
        names = [*self.adapters.names("metric"), *([] if listing else ["loss"])]
        if not isinstance(name, str) or name in names or self.adapters.has("metric", name):
            return
        prefixes = ("train_", "val_", "test_")
        bare = next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)
        if listing and bare == "loss":
            hint = "; the loss is always there, and need not be listed"
        elif bare in names or self.adapters.has("metric", bare):
            hint = f"; write it without the split: {bare!r}"
        else:
            hint = (
                nearest(name, names) or "; list one of your own in evaluation.metrics: [package.module:name]"
            )
        parts = [
            f"unknown metric {node.template or name!r}",
            *self.problems.once(f"known: {some(names, name, 'metric')}", "metric"),
        ]
        self.problems.report("; ".join(parts) + hint, path, node.source)


def _is_default(key: str, node: Node) -> bool:
    """Return whether a key of `training` has its default."""
    default = TrainingConfig.model_fields[key].get_default(call_default_factory=True)
    return bool(plain(node) == (values(default) if isinstance(default, BaseModel) else default))


def _fill(node: Node, value: Any) -> None:
    """Put validated values into the tree; those that were given keep their source."""
    if isinstance(value, dict) and isinstance(node.value, dict):
        for key, inner in value.items():
            _fill(node.value.setdefault(key, from_plain(inner, DEFAULT)), inner)
    elif isinstance(value, list) and isinstance(node.value, list) and len(value) == len(node.value):
        for item, inner in zip(node.value, value, strict=True):
            _fill(item, inner)
    else:
        node.value = from_plain(value, node.source).value
