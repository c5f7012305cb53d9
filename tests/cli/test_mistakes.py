"""Forty mistakes as people make them: each message has at most four lines, and names the mend."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from commandline import Command, lines_of_error

import trainwright
from trainwright.cli import errors
from trainwright.cli.commands import cli
from trainwright.errors import TrainwrightError

ROWS = "a,b,kind,y\n" + "".join(
    f"{i % 7},{i % 5}.5,{'uvw'[i % 3]},{'yes' if i % 2 else 'no'}\n" for i in range(60)
)
CONFIG = "data: {path: rows.csv, target: y}\nmodel: xgboost\n"

# What is wrong: the arguments after CONFIG, and what the message must name.
OVERRIDES = {
    "a key typo": (["training.epoch=3"], "did you mean 'epochs'?"),
    "a section typo": (["trainning.epochs=3"], "did you mean 'training'?"),
    "a name too long": ([f"experiment.name={'a' * 201}"], "expected a name of at most 200 letters"),
    "a key in two sections": (
        ["training.metric=val_f1"],
        "training.early_stopping.metric or checkpoint.metric",
    ),
    "no number": (["epochs=ten"], "expected a whole number above 0"),
    "no equals sign": (["epochs"], "training.epochs=3"),
    "an option typo": (["model.max_dept=3"], "did you mean 'max_depth'?"),
    "a model typo": (["model=xgbost"], "did you mean 'xgboost'?"),
    "a model of another library": (["model=efficientnet_b0"], "torchvision.models:efficientnet_b0"),
    "a language model": (["model=bert-base-uncased"], "AutoModel"),
    "no such model": (["model=nonsense"], "trainwright config names model"),
    "a model of another framework": (["model.type=rf", "model.framework=torch"], "leave model.framework out"),
    "a class for the other task": (
        ["model=XGBRegressor", "data.task=classification"],
        "write model: xgboost",
    ),
    "a missing package": (["model=absent.models:Net"], "there is no module 'absent'"),
    "a metric typo": (["evaluation.metrics=[acuracy]"], "did you mean 'accuracy'?"),
    "a metric that is none": (["checkpoint.metric=quality"], "trainwright config names metric"),
    "a metric of another task": (["evaluation.metrics=[rmse]"], "regression"),
    "the training loss decides": (["checkpoint.metric=train_loss"], "use val_loss"),
    "no such optimizer": (["model=mlp", "optimizer=adamz"], "did you mean 'adam"),
    "no such scheduler": (["model=mlp", "scheduler=StepLR"], "type: step, step_size: STEPS"),
    "a device that is none": (["device=mps"], "write cpu"),
    "two spellings": (["training.lr=0.1", "learning_rate=0.2"], "training.learning_rate"),
    "epochs and steps": (["epochs=3", "max_steps=9"], "keep one"),
    "page-locked memory": (["pin_memory=true"], "pinned where a GPU trains"),
    "an output folder": (["output_dir=out"], "--runs-dir"),
    "a file that is not there": (["data.path=row.csv"], "rows.csv"),
    "a spreadsheet": (["data=rows.xls"], "pandas.read_excel"),
    "a target that is not there": (["data.target=Y"], "'y'"),
    "a column that is not there": (["data.exclude=[knd]"], "'kind'"),
    "a folder as data": (["data.path=."], "data.type"),
    "a header alone": (["data.path=header.csv"], "there are columns, but no rows"),
    "no rows to test on": (["data.split={val: 0.6, test: 0.5}"], "their sum must be below 1"),
    "an unset variable": (["experiment.name=${env:TRAINWRIGHT_UNSET}"], "TRAINWRIGHT_UNSET is not set"),
    "a function that is not there": (["data.path=null", "data.type=absent:rows"], "no module 'absent'"),
    "a share of what": (["data.split=0.2"], "data.split: {val: 0.2}, or {test: 0.2}"),
    "categories": (["data.cat_features=[a]"], "data.columns: {COLUMN: category}"),
    "the rest": (["data.split.train=0.8"], "data.split.val and data.split.test are shares"),
    "an option of sgd": (["model=mlp", "training.optimizer.momentum=0.9"], "momentum is an option of sgd"),
    "a schedule of torch": (["model=mlp", "gamma=0.1"], "training.scheduler: {type: cosine"),
    "a batch that is too large": (["model=mlp", "batch_size=6400"], "set it to at most 48"),
}
COMMANDS = {
    "a name too long for a folder": (["create", "c.yaml", "--runs-dir", "\u0439" * 128], "has 256 bytes"),
    "a name too long for a run": (["runs", "show", "\u0439" * 128], "no run"),
    "a folder of images": (["init", ".", "--target", "y"], "leave --target out"),
    "one run twice": (["why", "last", "last"], "no run 'last'"),
    "an option for a setting": (["train", "c.yaml", "--lr", "0.1"], "training.learning_rate=VALUE"),
    "another option for a setting": (["train", "c.yaml", "--epochs=3"], "training.epochs=VALUE"),
    "a command of another tool": (["fit", "c.yaml"], "Write `trainwright train CONFIG`"),
    "a command typo": (["evalute", "last"], "Did you mean 'evaluate'?"),
    "a command of a group": (["list"], "Write `trainwright runs list`"),
    "a command of a server": (["deploy", "last"], "Write `trainwright package RUN -o FOLDER`"),
    "an option like a security option": (["resume", "--last"], "write `trainwright resume last`"),
    "a security option typed wrongly": (
        ["resume", "last", "--trst"],
        "There are: --runs-dir, --quiet, --json\n",
    ),
    "a language model on a table": (
        ["config", "check", "c.yaml", "model=gpt"],
        "gpt needs text, which data of the type csv are not",
    ),
    "a command that is none": (["tensorboard"], "There are: init, train, resume, fork"),
    "a run that is not given": (["resume"], "`last` for the newest"),
    "an option of the newest run": (["train", "--last"], "write `trainwright resume last`"),
    "a run with an option": (["train", "c.yaml", "--resume", "last"], "trainwright resume RUN"),
    "a run to delete": (["runs", "rm", "last"], "trainwright runs delete RUN"),
    "an option to try": (["train", "c.yaml", "--dry-run"], "write `trainwright config check CONFIG`"),
    "the rows as an option": (["predict", "last", "--input", "x"], "`trainwright predict RUN FILE`"),
    "a metric as an option": (["evaluate", "last", "--metric", "f1"], "evaluation.metrics"),
    "a short option": (["-V"], "write `trainwright --version`"),
    "a list of models": (["models"], "`trainwright config names model`"),
    "a list of runs": (["run", "list"], "`trainwright runs list`"),
    "an option of AutoGluon": (["train", "c.yaml", "--presets", "best"], "init FILE --target COLUMN"),
    "an option of Optuna": (["tune", "c.yaml", "--timeout", "9"], "write tuning.max_minutes=MINUTES"),
    "the same of a run": (["train", "c.yaml", "--timeout", "9"], "write training.max_minutes=MINUTES"),
    "a setting of a search": (["tune", "c.yaml", "--n-trials", "9"], "write tuning.trials=VALUE"),
    "the beginning of an option": (["predict", "last", "rows.csv", "--out", "o"], "Did you mean '--output'?"),
    "an option typo": (["tune", "c.yaml", "--jsn"], "Did you mean '--json'?"),
    "a config that is not there": (["train", "d.yaml"], "c.yaml"),
    "a run that is not there": (["runs", "show", "2020"], "holds no runs"),
    "no run to predict with": (["predict", "last", "rows.csv"], "holds no runs"),
    "names of nothing": (["config", "names", "models"], "allowed: dataset, framework"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "header.csv").write_text(ROWS.splitlines()[0] + "\n")
    return tmp_path


@pytest.mark.parametrize("mistake", OVERRIDES)
def test_a_config(mistake: str, folder: Path, command: Command) -> None:
    overrides, mend = OVERRIDES[mistake]
    done = command("train", "c.yaml", "--quiet", *overrides)
    lines = lines_of_error(done.err)
    assert done.code == 2, done.err
    assert mend in "\n".join(lines)
    assert len(lines) <= 4, done.err
    assert max(map(len, lines)) < 420, done.err


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_command_line(mistake: str, folder: Path, command: Command) -> None:
    arguments, mend = COMMANDS[mistake]
    done = command(*arguments)
    lines = lines_of_error(done.err)
    assert done.code == 2, done.err
    assert mend in "\n".join([*lines, ""])
    assert len(lines) <= 4, done.err


def lines_to_write() -> list[str]:
    """Return the command lines that are proposed for commands of other tools."""
    texts = [text if "`" in text else f"`{text}`" for text in errors._OTHER_COMMANDS.values()]
    texts += [text for text in errors._OTHER_OPTIONS.values() if "`" in text]
    return sorted({line for text in texts for line in re.findall(r"`(trainwright [^`]+)`", text)})


@pytest.mark.parametrize("line", lines_to_write())
def test_what_is_proposed_can_be_written(line: str) -> None:
    """A command that `--help` lists, and options that its own help lists."""
    group, words, seen = cli, line.split()[1:], 0
    context = click.Context(group)
    while isinstance(group, click.Group) and seen < len(words) and not words[seen].startswith("--"):
        found = group.get_command(context, words[seen])
        assert found is not None
        assert not found.hidden
        group, seen = found, seen + 1
    options = {word for one in group.params if isinstance(one, click.Option) for word in one.opts}
    given = {word for word in words[seen:] if word.startswith("--")}
    assert given <= options | {"--help", "--version"}
    assert not given & {*errors._DANGEROUS}


def test_every_wrong_key_has_a_line_and_no_list_comes_twice(folder: Path, command: Command) -> None:
    wrong = [f"training.wrong{i}=1" for i in range(16)]
    done = command("config", "check", "c.yaml", *wrong)
    lines = lines_of_error(done.err)
    assert len(lines) == 17
    assert sum("Allowed" in line for line in lines) <= 1


def test_python_calls(folder: Path) -> None:
    with pytest.raises(AttributeError, match=r"did you mean trainwright\.train\?"):
        trainwright.fit  # noqa: B018
    with pytest.raises(TrainwrightError, match="give a list"):
        trainwright.train("c.yaml", "training.epochs=3")
    with pytest.raises(TrainwrightError, match="no data section"):
        trainwright.train({"model": "xgboost"})
    with pytest.raises(TrainwrightError, match="did you mean 'xgboost'"):
        trainwright.check({"data": "wine", "model": "xgbost"})


@pytest.mark.slow  # trains
def test_a_header_alone_has_no_rows_to_predict_for(folder: Path, command: Command) -> None:
    assert command("train", "c.yaml", "model=gaussian_nb", "data.exclude=[kind]", "-q").code == 0
    done = command("predict", "last", "header.csv")
    assert (done.code, done.err) == (2, "trainwright: error: header.csv: there are columns, but no rows\n")
    Path("others.csv").write_text("speed,weight\n1,2\n")
    done = command("predict", "last", "others.csv")
    assert done.code == 2
    assert "there are: speed, weight" in done.err
