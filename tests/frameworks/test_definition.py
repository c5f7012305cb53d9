"""What a model is made from is an input of the run.

Code that an option leads to, and the options of an object.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightgbm import LGBMClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch.nn.utils import prune
from xgboost import XGBClassifier

import trainwright
from small_runs import SignalAt
from trainwright.errors import ChangedInputsError
from trainwright.frameworks.support.definition import describe_value
from trainwright.frameworks.torch.state.definition import definition_of_object
from trainwright.records.manifest import WITHOUT_VALUE

CONFIG = {"data": {"type": "wine"}, "training": {"threads": 1}, "logging": {"every_n_steps": 1}}
OBJECTIVE = """\
import numpy as np
def objective(raw, data):
    p = np.exp(raw - raw.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p - np.eye(3)[data.get_label().astype(int)], {factor} * p * (1 - p)
"""


class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


def doubled(x: Any) -> Any:
    return 2 * x


def net(dropout: float) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(13, 8), Block(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 3)
    )


def forest(depth: int) -> Any:
    scaled = make_pipeline(FunctionTransformer(doubled), StandardScaler())
    return make_pipeline(scaled, RandomForestClassifier(20, max_depth=depth))


@pytest.mark.parametrize(
    ("make", "values", "changed"),
    [
        (
            lambda depth: XGBClassifier(max_depth=depth, n_estimators=20),
            (2, 3),
            "model: max_depth was 2, is 3",
        ),
        (
            lambda leaves: LGBMClassifier(num_leaves=leaves, n_estimators=20),
            (4, 5),
            "model: num_leaves was 4, is 5",
        ),
        (lambda depth: RandomForestClassifier(100, max_depth=depth), (2, 3), "model: max_depth was 2, is 3"),
        (net, (0.1, 0.2), "model: layers was"),
    ],
    ids=["xgboost", "lightgbm", "sklearn", "torch"],
)
def test_an_object_with_other_options_is_refused(
    make: Callable[[Any], Any], values: tuple[Any, Any], changed: str, tmp_path: Path
) -> None:
    config = CONFIG | {"training": {"threads": 1, "max_steps": 12, "batch_size": 32}}
    cut = trainwright.train(config, runs_dir=tmp_path, model=make(values[0]), callbacks=[SignalAt(3)])
    assert cut.status == "preempted"
    with pytest.raises(ChangedInputsError, match=changed):
        trainwright.resume(cut, model=make(values[1]))
    assert trainwright.resume(cut, model=make(values[0])).status == "completed"


def test_the_code_of_an_objective_is_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "defined_objective.py"
    file.write_text(OBJECTIVE.format(factor=2.0), encoding="utf-8")
    model = {"type": "xgboost", "params": {"objective": "defined_objective:objective", "n_estimators": 12}}
    cut = trainwright.train(CONFIG | {"model": model}, runs_dir=tmp_path, callbacks=[SignalAt(3)])
    assert list(cut.manifest["code"]["modules"]) == ["defined_objective"]
    file.write_text(OBJECTIVE.format(factor=1.0), encoding="utf-8")
    with pytest.raises(ChangedInputsError, match="code: module defined_objective was"):
        trainwright.resume(cut)


def test_the_code_of_an_objects_parts_is_an_input(tmp_path: Path) -> None:
    config = CONFIG | {"training": {"threads": 1, "max_steps": 2, "batch_size": 32}}
    for model in (net(0.1), forest(2)):
        run = trainwright.train(config, runs_dir=tmp_path, model=model)
        assert any("test_definition" in name for name in run.manifest["code"]["modules"]), (
            "Block, and doubled"
        )


def test_a_hook_of_all_modules_is_part_of_each() -> None:
    before = definition_of_object(net(0.1))
    handle = torch.nn.modules.module.register_module_forward_hook(lambda _module, _inputs, output: 2 * output)
    try:
        assert definition_of_object(net(0.1)).keys() > before.keys()
    finally:
        handle.remove()
    assert definition_of_object(net(0.1)) == before


class Marked(list[Any]):
    """A list with an attribute."""

    def __init__(self, items: Any, mark: float) -> None:
        super().__init__(items)
        self.mark = mark


def test_the_attributes_of_a_container_count() -> None:
    one, same, other = (describe_value("kw", {"items": Marked([1], mark)}) for mark in (1.0, 1.0, 2.0))
    assert one == same != other


def adding(amount: float) -> Any:
    return lambda x: x + amount


class Adder:
    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self, x: Any) -> Any:
        return x + self.amount


def test_describe_value() -> None:
    here = f"{__name__}:"
    values = {"a": 1, "b": np.float64(0.5), "c": True, "d": None, "e": "text", "f": doubled, "g": Block}
    told = ["1", "0.5", "True", "None", "text", f"{here}doubled", f"{here}Block"]
    assert [describe_value(name, value) for name, value in values.items()] == [
        {n: t} for n, t in zip(values, told, strict=True)
    ]
    nested = describe_value("x", {"y": [1, doubled]})
    assert nested == {"x": "builtins:dict", "x.y": "builtins:list", "x.y.0": "1", "x.y.1": f"{here}doubled"}
    assert (
        describe_value("a", np.zeros(3))
        == describe_value("a", np.zeros(3))
        != describe_value("a", np.zeros(4))
    )


def partly(amount: float) -> Any:
    return functools.partial(pow, amount)


@pytest.mark.parametrize("make", [Adder, adding, partly])
def test_what_a_function_was_made_with_is_told(make: Callable[[float], Any]) -> None:
    assert describe_value("f", make(1.0)) == describe_value("f", make(1.0)) != describe_value("f", make(2.0))


def plain(_: Any) -> None:
    """Leave a module as it is."""


def frozen(model: Any) -> None:
    model[0].bias.requires_grad_(False)


def hooked(model: Any) -> None:
    model[0].register_forward_hook(lambda module, given, output: output * 2)


def hooked_otherwise(model: Any) -> None:
    model[0].register_forward_hook(lambda module, given, output: output * 3)


def hooked_before(model: Any) -> None:
    model.register_forward_pre_hook(lambda module, given: given)


def pruned(model: Any) -> None:
    prune.l1_unstructured(model[0], "weight", amount=0.5)


def parametrized(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model[0])


def buffered(model: Any) -> None:
    model.register_buffer("scale", torch.ones(2), persistent=False)


def transposed(model: Any) -> None:
    weight = model[0].weight.data
    model[0].weight = torch.nn.Parameter(weight.t().contiguous().t())


def with_function(model: Any) -> None:
    model[1].act = [lambda x: x * 1.0, lambda x: x * 3.0][0]


def with_other_function(model: Any) -> None:
    model[1].act = [lambda x: x * 1.0, lambda x: x * 3.0][1]


def twice(model: Any) -> None:
    model.add_module("again", torch.nn.Linear(13, 8))
    model.again.load_state_dict(model[0].state_dict())


def tied(model: Any) -> None:
    model.add_module("again", model[0])


def test_what_the_weights_of_a_module_do_not_say_defines_it() -> None:
    changes = [
        *(plain, frozen, hooked, hooked_otherwise, hooked_before, pruned, parametrized, buffered, transposed),
        *(with_function, with_other_function, twice, tied),
    ]

    def defined(change: Callable[[Any], None]) -> dict[str, str]:
        model = net(0.1)
        change(model)
        return definition_of_object(model)

    found = {change.__name__: defined(change) for change in changes}
    assert found == {change.__name__: defined(change) for change in changes}
    assert len({repr(one) for one in found.values()}) == len(changes)
    assert found["frozen"]["parameters that are not trained"] == "0.bias"
    assert not any(WITHOUT_VALUE in one for one in found.values())
