"""Read other spellings of the options of models and optimizers as ours, with the adapters' tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic.fields import FieldInfo

from trainwright.config.adapters import Adapters, Kind
from trainwright.config.spellings import METRICS, Refusal, Setting, Spellings
from trainwright.config.tree import (
    Conversion,
    Draft,
    Node,
    Source,
    find,
    find_value,
    from_plain,
    mapping,
    plain,
    put,
)
from trainwright.config.words import LONGEST, got

LENGTHS = ("training.epochs", "training.max_steps")
ROUNDS = "n_estimators"  # the option that says how many rounds; each is a step and an epoch


def _of_model(draft: Draft, path: str, params: Node) -> None:
    """Convert the options of a model, or of one of the library's classes, if these are relieved of any."""
    name, framework = (_text(draft.root, f"model.{key}") for key in ("type", "framework"))
    spellings = draft.installed.spellings("model", name, framework) if mapping(params) else None
    if spellings is None:
        return
    if ":" not in str(name):
        _Options(draft, path, params, spellings, _fields(draft.installed, "model", name, framework)).convert()
    elif spellings.classes:
        _Options(draft, path, params, spellings, None).convert()


def _of_optimizer(draft: Draft, path: str, params: Node) -> None:
    """Convert the options of an optimizer, but not of a class of the user's, which takes its own names."""
    name, framework = _text(draft.root, "training.optimizer.type"), _text(draft.root, "model.framework")
    if not mapping(params) or ":" in str(name):
        return
    if framework is None:
        framework = draft.installed.framework_of(str(_text(draft.root, "model.type")))
    if (spellings := draft.installed.spellings("optimizer", name, framework)) is not None:
        fields = _fields(draft.installed, "optimizer", name, framework)
        _Options(draft, path, params, spellings, fields).convert()


def _text(root: Node, path: str) -> str | None:
    """Return the text of a key; None for anything else, which validation reports."""
    node = find_value(root, path)
    return node.value if node is not None and isinstance(node.value, str) else None


def _fields(
    adapters: Adapters, kind: Kind, name: str | None, framework: str | None
) -> Mapping[str, FieldInfo]:
    """Return the options that are declared for a model or an optimizer."""
    options = None if name is None else adapters.params(kind, name, framework)
    return {} if options is None else options.model_fields


class _Options:
    """The options of one section.

    `fields` are the options that are declared; None if they are those of a class of the library, which takes
    its own names: only what means a setting of ours is translated then.
    """

    def __init__(
        self,
        draft: Draft,
        path: str,
        params: Node,
        spellings: Spellings,
        fields: Mapping[str, FieldInfo] | None,
    ) -> None:
        self.root = draft.root
        self.path = path.removesuffix(".params")
        self.options = mapping(params)
        self.spellings = spellings
        self.fields = fields
        self.files = draft.files
        self.problems = draft.problems
        self.draft = draft
        self.built: set[str] = set()  # lists that were made of single values

    def convert(self) -> None:
        """Convert all options: first their names, then their values."""
        own = self.fields or {}
        for name in [name for name in self.options if name not in own and name in self.spellings.settings]:
            self.setting(name, self.spellings.settings[name])
        self.metrics()
        if self.fields is None:
            return
        for name in [name for name in self.options if name not in own]:
            self.name(name)
        for option in list(self.options):
            self.value(option)

    def name(self, name: str) -> None:
        """Translate the name of an option that is not declared."""
        spellings = self.spellings
        option = spellings.aliases.get(name, name)
        if option.partition(".")[0] in (self.fields or {}):
            self.alias(name, option)
        elif option in spellings.refused:
            self.refuse(name, spellings.refused[option])
        elif name in spellings.unused:
            self.note(name, self.options.pop(name), f"has no effect: {spellings.unused[name]}")

    def refuse(self, name: str, refusal: Refusal) -> None:
        """Report an option that cannot be used, unless its value changes nothing."""
        node = self.options.pop(name)
        if not refusal.changes_nothing(plain(node)):
            self.problems.report(refusal.reason, self.key(name, node), node.key_source)

    def alias(self, name: str, option: str) -> None:
        """Rename an option; two spellings of it are a problem, unless they come from different layers."""
        node = self.options.pop(name)
        option, _, index = option.partition(".")
        if index:
            self.item(name, node, option, int(index))
            return
        if option == ROUNDS and not self.is_only_length(name, node):
            return
        other = self.options.get(option)
        if other is not None and self.layer(other) == self.layer(node):
            message = f"is another spelling of {option}, which is given too ({other.key_source}); keep one"
            self.problems.report(message, self.key(name, node), node.key_source)
        if other is None or self.layer(node) > self.layer(other):
            self.options[option] = node
            self.note(name, node, f"is read as {option}: {_shown(node)}")

    def item(self, name: str, node: Node, option: str, index: int) -> None:
        """Put a value into a list, such as `beta_1` into `betas`."""
        given = self.options.get(option)
        if given is not None and option not in self.built:
            message = f"is a part of {option}, which is given too ({given.key_source}); keep one"
            self.problems.report(message, self.key(name, node), node.key_source)
            return
        if given is None:
            if option not in (fields := self.fields or {}):
                self.options[name] = node  # validation reports it
                return
            given = from_plain(list(fields[option].get_default(call_default_factory=True)), node.source)
            given.key = node.key
        if isinstance(given.value, list):
            given.value[index] = node
        self.options[option] = given
        self.built.add(option)
        self.note(name, node, f"is read as {option}: {got_list(given)}")

    def is_only_length(self, name: str, node: Node) -> bool:
        """Return whether no setting says another number of rounds; report one of the same layer that does."""
        for key in LENGTHS:
            other = find_value(self.root, key)
            if other is None or other.value == node.value or self.layer(other) < self.layer(node):
                continue
            if self.layer(other) == self.layer(node):
                self.conflict(name, node, key, other)
            return False
        return True

    def setting(self, name: str, setting: Setting) -> None:
        """Move an option to the setting that it means."""
        node = self.options.pop(name)
        value = None if node.value is None else setting.read(plain(node))
        if value is None:
            return
        moved = from_plain(value, node.source) if value is not node.value else node
        self.put(name, node, setting.key, replace(moved, key=node.key, inline=False, template=node.template))

    def put(self, name: str, node: Node, key: str, value: Node) -> None:
        """Set one of our settings, unless a later layer does; report another value in the same layer."""
        other = find_value(self.root, key)
        if other is not None and plain(other) != plain(value):
            if self.layer(other) == self.layer(value):
                self.conflict(name, node, key, other)
                return
            if self.layer(other) > self.layer(value):
                return
        above = key.rpartition(".")[0]
        if (section := find(self.root, above)) is not None and section.value is None:
            section.value = {}
        put(self.root, key, value)
        self.note(name, node, f"is read as {key}: {_shown(value)}")

    def metrics(self) -> None:
        """List metrics in `evaluation.metrics`, unless the option takes them itself."""
        listed = [name for name in self.options if self.spellings.aliases.get(name, name) in METRICS]
        meant = {name: self.spellings.metrics_meant(plain(self.options[name])) for name in listed}
        named = {name: metrics for name, metrics in meant.items() if metrics is not None}
        nodes = {name: self.options.pop(name) for name in named}
        if not (ours := list(dict.fromkeys(metric for metrics in named.values() for metric in metrics))):
            for name, node in nodes.items():
                self.note(name, node, "is the loss, which is always there")
            return
        name, node = next(iter(nodes.items()))
        self.put(name, node, "evaluation.metrics", replace(from_plain(ours, node.source), key=node.key))
        stopping = (find_value(self.root, f"training.early_stopping.{key}") for key in ("patience", "metric"))
        if [one is not None for one in stopping] == [True, False] and len(ours) == 1:
            deciding = Node(f"val_{ours[0]}", node.source, node.key)
            self.put(name, node, "training.early_stopping.metric", deciding)

    def value(self, option: str) -> None:
        """Replace a value of an option that has another name here."""
        node = self.options[option]
        if option in self.spellings.lists and type(node.value) is int:
            self.options[option] = replace(
                node, value=[Node(node.value, node.source, template=node.template)]
            )
        key = node.value if isinstance(node.value, str | bool | int) else None
        if key not in (meanings := self.spellings.values.get(option, {})):
            return
        target, value = meanings[key]
        del self.options[option]
        if value is None:
            return
        moved = replace(from_plain(value, node.source), key=node.key, inline=node.inline)
        if "." in target:
            self.put(option, node, target, replace(moved, inline=False))
        elif target in self.options:
            other = self.options[target]
            message = f"{node.value} is {target}: {value}, which is given too ({other.key_source}); keep one"
            self.problems.report(message, self.key(option, node), node.key_source)
        else:
            self.options[target] = moved
            self.note(option, node, f"is read as {target}: {value}")

    def conflict(self, name: str, node: Node, key: str, other: Node) -> None:
        """Report an option that contradicts one of our settings."""
        message = (
            f"{got(node)} is given, but {key} ({other.key_source}), which means the same, is {got(other)}"
        )
        self.problems.report(f"{message}; keep one", self.key(name, node), node.key_source)

    def note(self, name: str, node: Node, text: str) -> None:
        """Note a translation."""
        self.draft.note(node, f"{self.key(name, node)}: {_shown(node)} {text}")

    def key(self, name: str, node: Node) -> str:
        """Return the dotted key as the user wrote it: inline options are not under `params`."""
        return f"{self.path}.{name}" if node.inline else f"{self.path}.params.{name}"

    def layer(self, node: Node) -> int:
        """Return the rank of the layer that a value comes from: overrides come above all files."""
        source: Source = node.key_source
        return -self.files.index(source.file) if source.file in self.files else 1


def got_list(node: Node) -> str:
    """Return a list of plain values, as a note shows it."""
    return str(plain(node))


def _shown(node: Node) -> str:
    """Return a value as notes show it; of `${env:NAME}` only the name, as the value may be a secret."""
    if node.template is not None or not isinstance(node.value, list | str):
        return node.template or got(node)
    text = node.value if isinstance(node.value, str) else got_list(node)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


OPTIONS: tuple[tuple[str, Conversion], ...] = (
    ("model.params", _of_model),
    ("training.optimizer.params", _of_optimizer),
)
