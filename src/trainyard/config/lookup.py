"""What only the installed adapters know: their names, and their options."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel

from trainyard.config.adapters import Adapters, Kind
from trainyard.config.checks import DEFAULT_EPOCHS, METRIC_KEYS
from trainyard.config.forms import tracking_items
from trainyard.config.messages import validate
from trainyard.config.resolved import values
from trainyard.config.schema import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrackerConfig,
    TrainingConfig,
    TypedSection,
)
from trainyard.config.tree import (
    DEFAULT,
    Node,
    Problems,
    Source,
    find,
    from_plain,
    given,
    join,
    mapping,
    plain,
    put,
)
from trainyard.config.words import nearest


class Lookup:
    """Checks names and options against the adapters, and fills in the defaults of the options."""

    def __init__(self, root: Node, adapters: Adapters, problems: Problems, notes: list[str]) -> None:
        self.root = root
        self.adapters = adapters
        self.problems = problems
        self.notes = notes

    def run(self) -> None:
        """Checks everything; problems are gathered, defaults are put into the tree."""
        known, framework = self.model()
        used = self.used(framework) if known else ()  # else each optimizer and loss would be unknown, too
        self.defaults(framework if known else None, used)
        if "optimizer" in used:
            self.optimizer(framework)
        if "loss" in used:
            self.loss(framework)
        self.section("dataset", "data", DataConfig)
        for key, _ in tracking_items(self.root):
            self.section("tracker", join("tracking", key), TrackerConfig)
        self.metrics()

    def model(self) -> tuple[bool, str | None]:
        """Whether the model's framework is known, and its name (None: only known when the model is imported)."""
        chosen, node = given(self.root, "model.framework"), given(self.root, "model.type")
        framework = None
        if chosen is not None and isinstance(chosen.value, str):
            framework = chosen.value
            if not self.known("framework", chosen, "model.framework"):
                return False, None
        if node is None or not isinstance(node.value, str):
            return False, None
        if ":" in node.value:
            return True, framework
        if framework is None:
            framework = self.adapters.framework_of(node.value)
        if framework is None or node.value not in self.adapters.names("model", framework):
            self.problems.report(self._no_model(node.value, framework), "model.type", node.source)
            return False, None
        self.options("model", node.value, "model", ModelConfig, framework)
        return True, framework

    def used(self, framework: str | None) -> Collection[str]:
        """The keys of `training` that have an effect; of the others, those that are set are named in a note."""
        training, model = given(self.root, "training"), given(self.root, "model.type")
        if framework is None or model is None:
            return TrainingConfig.model_fields
        params = given(self.root, "model.params")
        used = self.adapters.training_keys(
            framework, str(model.value), plain(params) if params is not None else {}
        )
        for key, node in mapping(training).items():
            if (
                key in TrainingConfig.model_fields
                and key not in used
                and node.value is not None
                and node.source != DEFAULT
            ):
                self.notes.append(
                    f"{node.place}: training.{key} has no effect on {model.value} ({framework})"
                )
        return used

    def defaults(self, framework: str | None, used: Collection[str]) -> None:
        """Fills in the defaults of the framework, and how long to train where nothing says so."""
        node = given(self.root, "model.type")
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
                and (section != "data" or given(self.root, "data"))
            ):
                put(self.root, path, Node(value, Source(f"default (of {framework})")))
        length = [given(self.root, f"training.{key}") for key in ("epochs", "max_steps")]
        if length == [None, None] and (not used or "epochs" in used):
            put(self.root, "training.epochs", Node(own.get("training.epochs", DEFAULT_EPOCHS), DEFAULT))

    def _no_model(self, name: str, framework: str | None) -> str:
        if framework is not None:
            models = self.adapters.names("model", framework)
            return f"model {name}: {framework} has no such model; it has {', '.join(models)}{nearest(name, models)}"
        known = self.adapters.names("model")
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # RandomForestClassifier
        if near := nearest(name, known) or nearest(
            re.sub(r"_(classifier|regressor|model)$", "", snake), known
        ):
            return f"model {name}: no installed framework has it{near}"
        answers = [
            f"{', '.join(self.adapters.names('model', one))} ({one})"
            for one in self.adapters.names("framework")
        ]
        listed = "; ".join(answers) or "none is installed"
        return f"model {name}: framework not installed; installed models: {listed}; or package.module:Class"

    def optimizer(self, framework: str | None) -> None:
        names, default = (
            self.adapters.names("optimizer", framework),
            OptimizerConfig.model_fields["type"].default,
        )
        if not names and given(self.root, "training.optimizer.type") is None:
            return
        if default not in names:
            default = next(iter(names), default)  # a framework's own first one
        if given(self.root, "training.optimizer") is None:
            training = mapping(self.root).setdefault("training", Node({}, DEFAULT))
            mapping(training)["optimizer"] = Node({"type": Node(default, DEFAULT)}, DEFAULT)
        mapping(given(self.root, "training.optimizer")).setdefault("type", Node(default, DEFAULT))
        self.section("optimizer", "training.optimizer", OptimizerConfig, framework)

    def loss(self, framework: str | None) -> None:
        node = given(self.root, "training.loss")
        if node is not None and node.value != "auto":
            self.known("loss", node, "training.loss", framework, extra=("auto",))

    def section(
        self, kind: Kind, path: str, section: type[TypedSection], framework: str | None = None
    ) -> None:
        """Checks `type`, then the options, of one section."""
        node = given(self.root, f"{path}.type")
        if node is None or not isinstance(node.value, str) or not node.value:
            return
        if kind == "dataset" and ":" in node.value:
            return  # package.module:function, whose options are its own affair
        if self.known(kind, node, f"{path}.type", framework):
            self.options(kind, node.value, path, section, framework)

    def known(
        self, kind: Kind, node: Node, path: str, framework: str | None = None, extra: Sequence[str] = ()
    ) -> bool:
        """Whether an adapter of this name is installed; reports it if not."""
        names = list(dict.fromkeys([*extra, *self.adapters.names(kind, framework)]))
        if node.value in names or not isinstance(node.value, str):
            return True  # what is no text is reported by validation
        of = f" of {framework}" if framework else ""
        shown = node.template or node.value
        known = ", ".join(names) or "none, as none is installed"
        place = (
            node.key if node.key is not None and not node.source.line else node.source
        )  # the former: where it was derived from
        self.problems.report(
            f"unknown {kind} {shown!r}{of}; known: {known}{nearest(node.value, names)}", path, place
        )
        return False

    def options(
        self, kind: Kind, name: str, path: str, section: type[TypedSection], framework: str | None
    ) -> None:
        """Validates `params`, and fills in the defaults."""
        holder = given(self.root, path)
        params = mapping(holder).get("params")
        model = self._options_of(kind, name, framework, params)
        if model is None or holder is None:
            return
        if params is None or params.value is None:
            params = Node({}, holder.source, holder.key, inline=True)
        if not isinstance(params.value, dict):
            return  # validation says so
        siblings = [field for field in section.model_fields if field != "params"]
        options = validate(model, params, f"{path}.params", self.problems, siblings)
        if options is not None:
            _fill(params, values(options))
            mapping(holder)["params"] = params

    def _options_of(
        self, kind: Kind, name: str, framework: str | None, params: Node | None
    ) -> type[BaseModel] | None:
        """The options of an adapter; of an optimizer that several frameworks have, where it is not known which is meant, those
        that what was given fits."""
        frameworks = (
            self.adapters.names("framework") if kind == "optimizer" and framework is None else [framework]
        )
        offered = [
            found for one in frameworks if (found := self.adapters.params(kind, name, one)) is not None
        ]
        given_params = params if params is not None and isinstance(params.value, dict) else Node({}, DEFAULT)
        fitting = (
            found for found in offered if validate(found, given_params.copy(), "", Problems(), []) is not None
        )
        return next(fitting, offered[0] if offered else None)

    def metrics(self) -> None:
        """Checks the names in `evaluation.metrics`, and those which decide something."""
        names = self.adapters.names("metric")
        listed = given(self.root, "evaluation.metrics")
        for index, node in enumerate(
            listed.value if listed is not None and isinstance(listed.value, list) else []
        ):
            self.metric(node, node.value, names, f"evaluation.metrics.{index}")
        for path in METRIC_KEYS:
            chosen = given(self.root, path)
            if chosen is not None and isinstance(chosen.value, str) and chosen.value.startswith("val_"):
                self.metric(chosen, chosen.value.removeprefix("val_"), [*names, "loss"], path)

    def metric(self, node: Node, name: Any, names: Sequence[str], path: str) -> None:
        if not isinstance(name, str) or name in names:
            return
        bare = next(
            (name.removeprefix(split) for split in ("train_", "val_", "test_") if name.startswith(split)),
            name,
        )
        near = f"; write it without the split: {bare!r}" if bare in names else nearest(name, names)
        if path.startswith("evaluation") and bare == "loss":
            near = "; the loss is always there, and need not be listed"
        self.problems.report(
            f"unknown metric {node.template or name!r}; known: {', '.join(names)}{near}", path, node.source
        )


def _fill(node: Node, value: Any) -> None:
    """Puts validated values into the tree; what was given keeps its source, what was not is a default."""
    if isinstance(value, dict) and isinstance(node.value, dict):
        for key, inner in value.items():
            _fill(node.value.setdefault(key, from_plain(inner, DEFAULT)), inner)
    elif isinstance(value, list) and isinstance(node.value, list) and len(value) == len(node.value):
        for item, inner in zip(node.value, value, strict=True):
            _fill(item, inner)
    else:
        node.value = from_plain(value, node.source).value
