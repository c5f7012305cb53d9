"""What `load` makes of good configs.

Long form, defaults, layers, variables, and where each value came from.
"""

import json
from pathlib import Path

import pytest

from trainwright.config import Source, load
from trainwright.config.schedules import CosineSchedule
from trainwright.errors import ConfigError

GOOD = {"data": "digits", "model": "mlp"}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def messages(*args, **kwargs) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    return [str(problem) for problem in caught.value.problems]


FULL = """\
experiment: {name: digits-mlp, seed: 42}
data: {type: digits, target: target, task: auto, split: {val: 0.1, test: 0.1, stratify: true}}
model: {type: mlp, params: {hidden: [256, 128], dropout: 0.1}}
training:
  epochs: 20
  batch_size: 64
  microbatch_size: null
  learning_rate: 1e-3
  weight_decay: 0.01
  optimizer: adamw
  scheduler: {type: cosine, warmup_steps: 50, final_lr_ratio: 0.01}
  loss: auto
  max_grad_norm: 1.0
  early_stopping: {metric: val_loss, patience: 5, mode: min}
  precision: fp32
  device: auto
  threads: null
  determinism: best
evaluation: {every_n_steps: 100, metrics: [accuracy, f1]}
checkpoint: {every_n_steps: 100, every_n_minutes: 10, keep_last: 2, save_top_k: 1, metric: val_loss, mode: min}
logging: {every_n_steps: 10}
tracking: [mlflow]
"""


def test_reads_every_documented_key(tmp_path, adapters):
    config = load(write(tmp_path, "full.yaml", FULL), adapters=adapters).config
    assert config.experiment.name == "digits-mlp"
    assert config.model.params == {"hidden": [256, 128], "dropout": 0.1, "activation": None}
    assert config.training.learning_rate == 1e-3
    assert config.training.scheduler == CosineSchedule(warmup_steps=50, final_lr_ratio=0.01)
    assert config.training.optimizer.params == {"betas": [0.9, 0.999]}
    assert config.checkpoint.every_n_minutes == 10.0
    assert [tracker.type for tracker in config.tracking] == ["mlflow"]


def test_short_and_long_forms_are_equal(adapters):
    short = load(
        {"data": "digits", "model": {"type": "mlp", "hidden": [3]}, "training": {"optimizer": "sgd"}},
        adapters=adapters,
    )
    long = load(
        {
            "data": {"type": "digits"},
            "model": {"type": "mlp", "params": {"hidden": [3]}},
            "training": {"optimizer": {"type": "sgd"}},
        },
        adapters=adapters,
    )
    assert short.config == long.config
    assert short.config_hash() == long.config_hash()


def test_epochs_default_to_ten_unless_steps_are_given():
    assert load(GOOD).config.training.epochs == 10
    steps = load(GOOD, {"training.max_steps": 5}).config.training
    assert (steps.epochs, steps.max_steps) == (None, 5)


@pytest.mark.parametrize(
    ("stem", "name"),
    [("digits", "digits"), ("my config (2)", "my-config-2"), ("Größe", "Gr-e"), ("...", "run")],
)
def test_name_defaults_to_a_safe_stem(stem, name, tmp_path):
    assert load(write(tmp_path, f"{stem}.yaml", "model: mlp\n")).config.experiment.name == name


def test_name_of_a_mapping_is_run():
    assert load(GOOD).config.experiment.name == "run"


@pytest.mark.parametrize(
    ("key", "path", "kind"),
    [("path", "a.csv", "csv"), ("path", "b.PARQUET", "parquet"), ("train_path", "c.npz", "npz")],
)
def test_data_type_by_ending(key, path, kind):
    resolved = load({"model": "mlp", "data": {key: path}})
    assert resolved.config.data.type == kind
    assert str(resolved.sources["data.type"]) == f"default (ending of data.{key})"


def test_empty_sections_are_defaults_and_data_may_be_absent(tmp_path):
    config = load(
        write(tmp_path, "c.yaml", "model: mlp\ndata:\ntraining:\n  # epochs: 3\ntracking:\nlogging:\n")
    ).config
    assert config.data is None
    assert config.tracking == []
    assert config.logging.every_n_steps == 10


def test_scheduler_without_type_is_constant():
    assert load(GOOD, {"training.scheduler.warmup_steps": 3}).config.training.scheduler.type == "constant"


def test_import_paths_are_not_looked_up(adapters):
    config = load(
        {"data": {"type": "mine.data:rows", "n": 3}, "model": {"type": "mine.nets:Net", "deep": {"a": [1]}}},
        adapters=adapters,
    ).config
    assert config.model.params == {"deep": {"a": [1]}}
    assert config.data.params == {"n": 3}


def test_a_framework_without_optimizers_needs_none(adapters, monkeypatch):
    names = adapters.names
    monkeypatch.setattr(
        adapters, "names", lambda kind, framework=None: [] if kind == "optimizer" else names(kind)
    )
    assert load(GOOD, (), adapters).config.training.optimizer.params == {}
    assert "unknown optimizer 'sgd' of torch" in messages(GOOD, ["training.optimizer=sgd"], adapters)[0]


def test_all_problems_at_once(tmp_path, monkeypatch, adapters):
    monkeypatch.chdir(tmp_path)
    lines = [
        "model: {type: mlpp}",
        "training:",
        "  epoch: 3",
        "  batch_size: many",
        "  batch_size: 3",
        "  epochs: 1",
    ]
    write(tmp_path, "bad.yaml", "\n".join([*lines, "  max_steps: 2", "loging: {}", "tracking: [mlfow]", ""]))
    found = [
        message.split(": ") for message in messages("bad.yaml", ["training.threads=0", "nonsense"], adapters)
    ]
    assert [(place, key) for place, key, *_ in found] == [
        ("bad.yaml:1:15", "model.type"),
        ("bad.yaml:3:3", "training.epoch"),
        ("bad.yaml:4:15", "training.batch_size"),
        ("bad.yaml:5:3", "training.batch_size"),
        ("bad.yaml:7:3", "training.max_steps"),
        ("bad.yaml:8:1", "loging"),
        ("bad.yaml:9:12", "tracking.0.type"),
        ("command line", "expected key.path=value, got 'nonsense'; for example training.epochs=3"),
        ("command line", "training.threads"),
    ]


class TestFiles:
    def test_missing_names_the_near_one(self, tmp_path):
        write(tmp_path, "train.yaml", "model: mlp\n")
        (message,) = messages(tmp_path / "trian.yaml")
        assert message.endswith("trian.yaml: no such file; did you mean 'train.yaml'?")

    def test_a_setting_is_no_file(self):
        (message,) = messages(Path("model.type=mlp"))
        assert message == "model.type=mlp: no such file, but a setting; name the config file first"

    def test_missing_folder(self, tmp_path):
        assert "there is no folder" in messages(tmp_path / "no" / "a.yaml")[0]

    def test_folder(self, tmp_path):
        assert messages(tmp_path) == [f"{tmp_path}: is a folder; give a YAML file"]

    def test_not_utf8_names_the_place(self, tmp_path):
        path = tmp_path / "a.yaml"
        path.write_bytes(b"model: mlp\nexperiment: {name: gr\xfcn}\n")
        assert messages(path) == [f"{path}:2:22: is not UTF-8 text (byte 0xfc); save it as UTF-8"]

    def test_byte_order_mark_and_windows_lines(self, tmp_path):
        path = tmp_path / "a.yaml"
        path.write_bytes(b"\xef\xbb\xbfmodel: mlp\r\ntraining:\r\n  epochs: 3\r\n")
        assert load(path).config.training.epochs == 3


class TestOverrides:
    def test_values_are_yaml(self, adapters):
        texts = [
            "training.epochs=3",
            "training.learning_rate=1e-4",
            "tracking=[mlflow, {type: mlflow, uri: 'x=y'}]",
            "model.dropout=0.5",
        ]
        config = load(
            GOOD, [*texts, "training.early_stopping={patience: 2}", "training.max_grad_norm="], adapters
        ).config
        assert (config.training.epochs, config.training.learning_rate, config.training.max_grad_norm) == (
            3,
            1e-4,
            None,
        )
        assert config.tracking[1].params == {"uri": "x=y"}
        assert config.model.params["dropout"] == 0.5
        assert config.training.early_stopping.patience == 2

    def test_of_one_item(self, adapters):
        config = load(
            {**GOOD, "tracking": ["tensorboard", "mlflow"]}, ["tracking.1.uri=sqlite:///a.db"], adapters
        ).config
        assert config.tracking[1].params["uri"] == "sqlite:///a.db"
        assert config.tracking[0].type == "tensorboard"

    def test_item_out_of_range(self):
        (message,) = messages({**GOOD, "tracking": ["mlflow"]}, ["tracking.1.uri=x"])
        assert message == "command line: tracking.1: no such item; there are 0 to 0"

    def test_upon_a_short_form(self, adapters):
        config = load(
            {**GOOD, "training": {"optimizer": "sgd"}}, ["training.optimizer.momentum=0.9"], adapters
        ).config
        assert (config.training.optimizer.type, config.training.optimizer.params) == (
            "sgd",
            {"momentum": 0.9},
        )

    def test_order_does_not_matter_within_the_command_line(self, adapters):
        for texts in (
            ["training.optimizer.type=sgd", "training.optimizer.momentum=0.9"],
            ["training.optimizer.momentum=0.9", "training.optimizer=sgd"],
        ):
            assert load(GOOD, texts, adapters).config.training.optimizer.params == {"momentum": 0.9}

    def test_last_one_counts_and_it_is_said(self):
        resolved = load(GOOD, ["training.epochs=3", "training.epochs=4"])
        assert resolved.config.training.epochs == 4
        assert resolved.notes == (
            "command line: training.epochs is given more than once; the last one counts",
        )

    def test_a_repetition_is_told_once(self):
        (note,) = load(GOOD, ["training.epochs=3", "training.epochs=4", "training.epochs=5"]).notes
        assert note == "command line: training.epochs is given more than once; the last one counts"

    def test_a_key_that_is_given_twice_is_called_as_it_was_written(self):
        given = GOOD | {"training": {"per_device_train_batch_size": 8, "batch_size": 16}}
        (message,) = messages(given)
        assert "training.per_device_train_batch_size: is another spelling of training.batch_size" in message

    @pytest.mark.parametrize("text", ["training.epochs", "=3", "training..epochs=3", ".=3", "a b =3 ="])
    def test_malformed(self, text):
        (message,) = messages(GOOD, [text])
        assert message.startswith("command line: ")

    def test_unreadable_value(self):
        (message,) = messages(GOOD, ["tracking=[mlflow"])
        assert message.startswith("command line: tracking: cannot read '[mlflow': not valid YAML")

    def test_a_sign_needs_quotes(self):
        (message,) = messages(GOOD, ["data.params.delimiter=,"])
        assert message.endswith("""cannot read ',': give it in quotes: 'data.params.delimiter=","'""")

    def test_unknown_key(self):
        (message,) = messages(GOOD, ["training.epoch=3"])
        assert message.startswith("command line: training.epoch: unknown key; did you mean 'epochs'?")

    def test_wrong_type(self):
        assert messages(GOOD, ["training.epochs=ten"])[0].startswith(
            "command line: training.epochs: expected a whole number above 0"
        )

    def test_extends_is_for_files(self):
        assert messages(GOOD, ["extends=a.yaml"]) == ["command line: extends: is allowed only in a file"]

    def test_from_python(self):
        config = load(
            GOOD, {"training.epochs": 3, "data": {"split": {"val": 0.2}}, "model.hidden": (3, 4)}
        ).config
        assert (config.training.epochs, config.data.split.val, config.model.params) == (
            3,
            0.2,
            {"hidden": [3, 4]},
        )

    def test_from_python_of_no_plain_type(self):
        (message,) = messages(GOOD, {"model.hidden": object()})
        assert message.startswith(
            "overrides: model.hidden: a config cannot hold a value of type object; allowed: text, numbers"
        )

    def test_a_function_or_class_is_named_with_its_path(self):
        (message,) = messages(GOOD, {"training.loss": json.dumps})
        assert message == (
            "overrides: training.loss: a config names a function by its import path; write 'json:dumps'"
        )
        (message,) = messages(GOOD, {"training.loss": lambda outputs, batch: 0})
        assert message.endswith(
            "put the function into a module of its own, and write package.module:function"
        )

    def test_parameter_groups_have_the_names_of_torch(self):
        groups = [{"params": "*bias", "lr": 0.1, "WD": 0}, {"match": "*", "learning_rate": 1, "lr": 2}]
        resolved = load(GOOD, {"training.parameter_groups": groups[:1]})
        (group,) = resolved.config.training.parameter_groups
        assert (group.match, group.learning_rate, group.weight_decay) == ("*bias", 0.1, 0)
        assert len(resolved.notes) == 3
        (message,) = messages(GOOD, {"training.parameter_groups": groups})
        assert "parameter_groups.1.lr: is another spelling of learning_rate" in message

    def test_older_spelling(self):
        resolved = load(GOOD, ["training.mixed_precision=true"])
        assert resolved.config.training.precision == "mixed"
        assert len(resolved.notes) == 1


class TestExtends:
    def test_is_laid_upon_its_base_key_by_key(self, tmp_path, adapters):
        write(
            tmp_path,
            "base.yaml",
            "model: {type: mlp, hidden: [9, 9], dropout: 0.2}\ntraining: {epochs: 3, batch_size: 8}\ntracking: [mlflow]\n",
        )
        (tmp_path / "sub").mkdir()
        child = write(
            tmp_path / "sub",
            "child.yaml",
            "extends: ../base.yaml\nmodel: {hidden: [1]}\ntraining: {epochs: 4}\ntracking: [tensorboard]\n",
        )
        resolved = load(child, ["training.batch_size=16"], adapters)
        config = resolved.config
        assert config.model.params == {"hidden": [1], "dropout": 0.2, "activation": None}
        assert (config.training.epochs, config.training.batch_size) == (4, 16)
        assert [tracker.type for tracker in config.tracking] == ["tensorboard"]
        assert resolved.sources["training.epochs"] == Source(str(child), 3, 20)
        assert resolved.sources["model.params.dropout"] == Source(
            str(tmp_path / "sub" / ".." / "base.yaml"), 1, 45
        )
        assert resolved.sources["training.batch_size"] == Source("command line")
        assert resolved.sources["model.params.activation"] == Source("default")

    def test_chain_and_circle(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path, "a.yaml", "extends: b.yaml\nmodel: mlp\n")
        write(tmp_path, "b.yaml", "extends: c.yaml\n")
        write(tmp_path, "c.yaml", "experiment: {seed: 5}\n")
        assert load("a.yaml").config.experiment.seed == 5
        write(tmp_path, "c.yaml", "extends: a.yaml\n")
        assert messages("a.yaml") == [
            "c.yaml:1:10: extends: extends itself in a circle: a.yaml -> b.yaml -> c.yaml -> a.yaml"
        ]

    def test_problem_in_the_base_names_the_base(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path, "base.yaml", "training: {epoch: 3}\n")
        write(tmp_path, "a.yaml", "extends: base.yaml\nmodel: mlp\n")
        assert messages("a.yaml")[0].startswith("base.yaml:1:12: training.epoch: unknown key")

    def test_another_type_takes_no_options_over(self, tmp_path, adapters):
        base = ["model: {type: mlp, hidden: [9]}", "training: {optimizer: {type: sgd, momentum: 0.9}}"]
        write(tmp_path, "base.yaml", "\n".join([*base, "data: {type: csv, path: a.csv, target: y}"]))
        child = write(
            tmp_path,
            "c.yaml",
            "extends: base.yaml\nmodel: transformer\ntraining: {optimizer: adamw}\ndata: digits\n",
        )
        resolved = load(child, adapters=adapters)
        assert resolved.config.model.params == {"hidden_size": 64, "num_layers": 2, "dropout": 0.0}
        assert resolved.config.training.optimizer.params == {"betas": [0.9, 0.999]}
        assert (resolved.config.data.path, resolved.config.data.target) == (None, "y")
        assert any(
            "model.type is transformer instead of mlp: mlp's params dropped" in note
            for note in resolved.notes
        )

    def test_another_type_of_table_keeps_all_but_options_and_names_what_was_set(self, adapters):
        base = load({**GOOD, "data": {"path": "a.csv", "target": "y", "features_from": "a:b"}}).config
        data = base.data.model_dump() | {"params": {"delimiter": ";"}}
        data = {key: value for key, value in data.items() if key != "version"}
        both = {"data.type": "parquet", "data.path": "b.parquet"}
        kept = load({**GOOD, "data": data}, both, adapters=adapters)
        assert kept.config.data.features_from == "a:b"
        assert kept.notes == ("overrides: data.type is parquet instead of csv: csv's params dropped",)
        other = load({**GOOD, "data": data}, {"data.type": "digits"}, adapters=adapters)
        assert "csv's params, path, features_from dropped" in other.notes[0]

    def test_another_scheduler_keeps_what_it_knows(self):
        base = {
            **GOOD,
            "training": {"scheduler": {"type": "cosine", "warmup_steps": 5, "final_lr_ratio": 0.1}},
        }
        linear = load(base, ["training.scheduler=linear"]).config.training.scheduler
        assert (linear.warmup_steps, linear.final_lr_ratio) == (5, 0.1)
        step = load(base, ["training.scheduler={type: step, step_size: 4}"]).config.training.scheduler
        assert (step.warmup_steps, step.step_size) == (5, 4)

    def test_older_spelling_in_the_base(self, tmp_path):
        write(tmp_path, "base.yaml", "training: {gradient_accumulation_steps: 4, mixed_precision: true}\n")
        child = write(
            tmp_path, "c.yaml", "extends: base.yaml\nmodel: mlp\ntraining: {batch_size: 8, precision: fp32}\n"
        )
        training = load(child).config.training
        assert (training.batch_size, training.microbatch_size, training.precision) == (32, 8, "fp32")


class TestVariables:
    def test_whole_value_is_typed_and_part_is_text(self, monkeypatch, tmp_path):
        monkeypatch.setenv("EPOCHS", "7")
        monkeypatch.setenv("WHO", "ann")
        text = "model: mlp\ntraining: {epochs: 1}\nexperiment:\n  name: run-${env:WHO}-${env:EPOCHS}\n"
        resolved = load(write(tmp_path, "a.yaml", text.replace("{epochs: 1}", "\n  epochs: ${env:EPOCHS}")))
        assert resolved.config.training.epochs == 7
        assert resolved.config.experiment.name == "run-ann-7"
        assert resolved.templates == {
            "training.epochs": "${env:EPOCHS}",
            "experiment.name": "run-${env:WHO}-${env:EPOCHS}",
        }

    def test_text_stays_text_where_text_is_wanted(self, monkeypatch, adapters):
        monkeypatch.setenv("CODE", "007")
        config = load(
            {
                **GOOD,
                "experiment": {"name": "${env:CODE}"},
                "tracking": [{"type": "mlflow", "uri": "${env:CODE}"}],
            },
            adapters=adapters,
        ).config
        assert config.experiment.name == "007"
        assert config.tracking[0].params["uri"] == "007"

    def test_secret_is_in_no_message_dump_or_hash(self, monkeypatch, adapters):
        monkeypatch.setenv("SECRET", "hunter2")
        (message,) = messages(GOOD, ["training.epochs=${env:SECRET}"])
        assert (
            message
            == "command line: training.epochs: expected a whole number above 0, or null, got the value of ${env:SECRET}"
        )
        config = {**GOOD, "tracking": [{"type": "mlflow", "uri": "http://me:${env:SECRET}@x"}]}
        resolved = load(config, adapters=adapters)
        assert resolved.config.tracking[0].params["uri"] == "http://me:hunter2@x"
        assert "hunter2" not in resolved.dump()
        assert resolved.flat()["tracking.0.params.uri"] == "http://me:${env:SECRET}@x"
        before = resolved.config_hash()
        monkeypatch.setenv("SECRET", "other")
        assert load(config, adapters=adapters).config_hash() == before

    def test_in_extends(self, monkeypatch, tmp_path):
        monkeypatch.setenv("BASE", "base")
        write(tmp_path, "base.yaml", "experiment: {seed: 8}\n")
        assert (
            load(write(tmp_path, "a.yaml", "extends: ${env:BASE}.yaml\nmodel: mlp\n")).config.experiment.seed
            == 8
        )


class TestDialects:
    TABULAR = """\
experiment: {name: product-classifier, seed: 7, tracking_uri: "sqlite:///mlflow.db"}
data: {train_path: data/train.parquet, val_path: data/val.parquet, test_path: data/test.parquet}
model: {type: random_forest, params: {n_estimators: 100}}
training:
  batch_size: 32
  early_stopping: {patience: 5, metric: val_loss, mode: min}
  checkpoint: {save_top_k: 3, metric: val_f1}
"""
    SECTIONS = """\
model: {name: transformer, hidden_size: 512, num_layers: 6, dropout: 0.1}
training: {batch_size: 32, mixed_precision: true, gradient_accumulation_steps: 4}
distributed: {enabled: true, backend: nccl}
checkpointing: {save_every_n_steps: 1000, keep_n_checkpoints: 3}
logging: {log_every_n_steps: 100, eval_every_n_steps: 500}
"""

    def test_tabular(self, tmp_path, monkeypatch, adapters):
        monkeypatch.chdir(tmp_path)
        write(tmp_path, "t.yaml", self.TABULAR)
        (message,) = messages("t.yaml", adapters=adapters)
        assert message.startswith(
            "t.yaml:3:15: model.type: model random_forest: no installed framework has it; "
        )
        resolved = load("t.yaml", ["model=pytorch"], adapters)
        config = resolved.config
        assert (config.tracking[0].type, config.tracking[0].params["uri"]) == (
            "mlflow",
            "sqlite:///mlflow.db",
        )
        assert (config.checkpoint.save_top_k, config.checkpoint.metric) == (3, "val_f1")
        assert (config.model.type, config.data.type) == ("mlp", "parquet")
        assert len(resolved.notes) == 4  # tracking_uri, checkpoint, pytorch, and the forest's options

    def test_sections(self, tmp_path, adapters):
        resolved = load(write(tmp_path, "s.yaml", self.SECTIONS), adapters=adapters)
        config = resolved.config
        assert config.data is None
        assert (config.model.type, config.model.params["hidden_size"]) == ("transformer", 512)
        assert (config.training.batch_size, config.training.microbatch_size, config.training.precision) == (
            128,
            32,
            "mixed",
        )
        assert (config.checkpoint.every_n_steps, config.checkpoint.keep_last) == (1000, 3)
        assert (config.logging.every_n_steps, config.evaluation.every_n_steps) == (100, 500)
        assert (config.distributed.enabled, config.distributed.backend) == (True, "nccl")
        assert len(resolved.notes) == 7
        assert all(note.startswith(f"{tmp_path / 's.yaml'}:") for note in resolved.notes)

    def test_accumulation_without_batch_size(self):
        training = load({**GOOD, "training": {"gradient_accumulation_steps": 2}}).config.training
        assert (training.batch_size, training.microbatch_size) == (64, 32)

    def test_no_mixed_precision_is_fp32(self):
        assert load({**GOOD, "training": {"mixed_precision": False}}).config.training.precision == "fp32"
