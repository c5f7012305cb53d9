"""Every way to get a config wrong: the place, the key and the way to mend it are in the message."""

import pytest

from trainwright.config import load
from trainwright.errors import ConfigError

GOOD = "data: {type: digits}\nmodel: {type: mlp}\n"

# name: (text, where and which key, words of the message that lead to the mend)
BROKEN = {
    # unknown keys
    "root typo": (
        GOOD + "trainning: {epochs: 3}\n",
        "3:1: trainning",
        "unknown key; did you mean 'training'?",
    ),
    "key typo": (
        GOOD + "training:\n  epoch: 3\n",
        "4:3: training.epoch",
        "did you mean 'epochs'? Allowed: epochs ... (`trainwright config names training`",
    ),
    "nested typo": (
        GOOD + "training:\n  early_stopping: {patienc: 3}\n",
        "4:20: training.early_stopping.patienc",
        "'patience'",
    ),
    "key of another section": (
        GOOD + "training: {metric: val_f1}\n",
        "3:12: training.metric",
        "did you mean training.early_stopping.metric or checkpoint.metric?",
    ),
    "no near key": (GOOD + "logging: {zzz: 3}\n", "3:11: logging.zzz", "Allowed: every_n_steps, histograms"),
    "scheduler option of another type": (
        GOOD + "training:\n  scheduler: {type: step, step_size: 3, warmup_step: 2}\n",
        "4:41: training.scheduler.warmup_step",
        "did you mean 'warmup_steps'?",
    ),
    "inline option typo": (
        "data: {type: digits}\nmodel:\n  type: mlp\n  hiden: [3]\n",
        "4:3: model.hiden",
        "did you mean 'hidden'?",
    ),
    "params option typo": (
        "data: {type: digits}\nmodel:\n  type: mlp\n  params:\n    hiden: [3]\n",
        "5:5: model.params.hiden",
        "did you mean 'hidden'? Allowed: activation, dropout, hidden",
    ),
    "own key of model typo": (
        "data: {type: digits}\nmodel: {type: mlp, framwork: torch}\n",
        "2:20: model.framwork",
        "did you mean 'framework'?",
    ),
    "data key typo": (
        "data: {type: csv, path: a.csv, trget: y}\nmodel: mlp\n",
        "1:32: data.trget",
        "did you mean 'target'?",
    ),
    "tracker option": (
        GOOD + "tracking: [{type: mlflow, url: x}]\n",
        "3:27: tracking.0.url",
        "did you mean 'uri'?",
    ),
    "optimizer option": (
        GOOD + "training: {optimizer: {type: adamw, momentum: 0.9}}\n",
        "3:37: training.optimizer.momentum",
        "momentum is an option of sgd",
    ),
    # types and limits
    "text for number": (
        GOOD + "training: {epochs: ten}\n",
        "3:20: training.epochs",
        "expected a whole number above 0, or null, got 'ten'",
    ),
    "quoted number": (
        GOOD + "training: {epochs: '10'}\n",
        "3:20: training.epochs",
        "got '10' (remove the quotes)",
    ),
    "fraction for whole": (
        GOOD + "training: {batch_size: 32.0}\n",
        "3:24: training.batch_size",
        "got 32.0 (write 32)",
    ),
    "negative": (
        GOOD + "training: {learning_rate: -1e-3}\n",
        "3:27: training.learning_rate",
        "a number above 0, got -0.001",
    ),
    "infinite": (
        GOOD + "training: {learning_rate: .inf}\n",
        "3:27: training.learning_rate",
        "expected a number above 0, got inf",
    ),
    "out of range": (GOOD + "data2: 1\n", "3:1: data2", "did you mean 'data'?"),
    "number for text": (
        GOOD + "training: {loss: 3}\n",
        "3:18: training.loss",
        "expected text, got 3 (put it in quotes)",
    ),
    "yaml 1.1 boolean": (
        GOOD + "logging: {histograms: yes}\n",
        "3:23: logging.histograms",
        "only true and false are booleans",
    ),
    "boolean for number": (
        GOOD + "training: {threads: true}\n",
        "3:21: training.threads",
        "a whole number above 0 and of at most 1024, or null, got true",
    ),
    "list for mapping": (
        GOOD + "training: [epochs]\n",
        "3:11: training",
        "expected a mapping, got a list of 1",
    ),
    "text for section": (GOOD + "evaluation: often\n", "3:13: evaluation", "expected a mapping, got 'often'"),
    "text for list": (
        GOOD + "evaluation: {metrics: 1}\n",
        "3:23: evaluation.metrics",
        "expected a list, each text, or null, got 1",
    ),
    "list of wrong things": (
        "data: {type: csv, path: a.csv, features: [a, 2]}\nmodel: mlp\n",
        "1:46: data.features.1",
        "expected text, got 2 (put it in quotes)",
    ),
    "empty list": (
        "data: {type: csv, path: a.csv, features: []}\nmodel: mlp\n",
        "1:42: data.features",
        "a list of at least 1, each text",
    ),
    "not one of": (
        GOOD + "training: {precision: bf61}\n",
        "3:23: training.precision",
        "one of fp32, tf32, bf16, fp16, mixed; got 'bf61'; did you mean 'bf16'?",
    ),
    "no such device": (
        GOOD + "training: {device: gpus}\n",
        "3:20: training.device",
        "expected auto, cpu, cuda or cuda:NUMBER",
    ),
    "unsafe name": (
        GOOD + "experiment: {name: ../x}\n",
        "3:20: experiment.name",
        "a name of at most 200 letters, digits,",
    ),
    "no such scheduler": (
        GOOD + "training: {scheduler: cosin}\n",
        "3:23: training.scheduler.type",
        "did you mean 'cosine'?",
    ),
    "scheduler number": (
        GOOD + "training: {scheduler: 3}\n",
        "3:23: training.scheduler",
        "one of constant, linear, cosine, cosine_restarts",
    ),
    "option of wrong type": (
        "data: {type: digits}\nmodel:\n  type: mlp\n  hidden: [256, big]\n",
        "4:17: model.hidden.1",
        "expected a whole number above 0, got 'big'",
    ),
    "list element out of range": (
        "data: {type: digits}\nmodel:\n  type: mlp\n  hidden: [0]\n",
        "4:12: model.hidden.0",
        "expected a whole number above 0, got 0",
    ),
    "option out of range": (
        "data: {type: digits}\nmodel: {type: mlp, params: {dropout: 1.5}}\n",
        "2:38: model.params.dropout",
        "expected a number of at least 0 and below 1, got 1.5",
    ),
    "adapter's own check": (
        "data: {type: digits}\nmodel: {type: mlp, params: {hidden: [1, 1, 1, 1, 1, 1]}}\n",
        "2:28: model.params",
        "more than 5 hidden layers",
    ),
    "tuple too short": (
        GOOD + "training: {optimizer: {type: adamw, betas: [0.9]}}\n",
        "3:44: training.optimizer.betas",
        "expected a list of 2: a number, a number, got a list of 1",
    ),
    "params is no mapping": (
        "data: {type: digits}\nmodel: {type: mlp, params: 3}\n",
        "2:28: model.params",
        "expected a mapping, got 3",
    ),
    "split share": (
        "data: {type: digits, split: {val: 1.0}}\nmodel: mlp\n",
        "1:35: data.split.val",
        "of at least 0 and below 1, got 1.0",
    ),
    # missing
    "no model": ("data: {type: digits}\n", "1:1: model", "is missing; expected a mapping"),
    "no model type": (
        "data: {type: digits}\nmodel: {hidden: [3]}\n",
        "2:1: model.type",
        "is missing; expected text: a short name",
    ),
    "step without size": (
        GOOD + "training: {scheduler: step}\n",
        "3:12: training.scheduler.step_size",
        "expected a whole number above 0",
    ),
    "tracker without type": (GOOD + "tracking: [{uri: x}]\n", "3:12: tracking.0.type", "is missing"),
    "required option": (
        "data: {type: lake}\nmodel: mlp\n",
        "1:1: data.table",
        "is missing; expected text: the table's name",
    ),
    # names of adapters
    "model of no installed framework": (
        "data: {type: digits}\nmodel: {type: random_forest}\n",
        "2:15: model.type",
        "known: mlp, transformer; or package.module:Class",
    ),
    "model by class": (
        "data: {type: digits}\nmodel: {type: TransformerModel}\n",
        "2:15: model.type",
        "no installed framework has it; did you mean 'transformer'?",
    ),
    "model typo": (
        "data: {type: digits}\nmodel: {type: tranformer}\n",
        "2:15: model.type",
        "did you mean 'transformer'?",
    ),
    "no such framework": (
        "data: {type: digits}\nmodel: {type: mlp, framework: torsh}\n",
        "2:31: model.framework",
        "known: torch; did you mean 'torch'?",
    ),
    "model of another framework": (
        "data: {type: digits}\nmodel: {type: mlpp, framework: torch}\n",
        "2:15: model.type",
        "torch has no such model; known: mlp, transformer; did you mean 'mlp'?",
    ),
    "bad import path": (
        "data: {type: digits}\nmodel: {type: 'my.module:'}\n",
        "2:15: model.type",
        "expected package.module:Name",
    ),
    "dataset typo": ("data: {type: digts}\nmodel: mlp\n", "1:14: data.type", "did you mean 'digits'?"),
    "file as dataset": (
        "data: rows.xyz\nmodel: mlp\n",
        "1:7: data.type",
        "to read a file, write data: {path: rows.xyz, target: COLUMN}",
    ),
    "optimizer typo": (
        GOOD + "training: {optimizer: adam}\n",
        "3:23: training.optimizer.type",
        "known: adamw, sgd; did you mean 'adamw'?",
    ),
    "inferred dataset not installed": (
        "data: {path: a.npz}\nmodel: mlp\n",
        "1:14: data.type",
        "unknown dataset 'npz'; known: digits, wine, csv, parquet, lake",
    ),
    "optimizer by import": (
        GOOD + "training: {optimizer: 'mine/opt.py:Lion'}\n",
        "3:23: training.optimizer.type",
        "expected package.module:Name, got 'mine/opt.py:Lion'; write opt:Lion, and start it where the file is",
    ),
    "loss typo": (
        GOOD + "training: {loss: cros_entropy}\n",
        "3:18: training.loss",
        "did you mean 'cross_entropy'?",
    ),
    "another tracker": (GOOD + "tracking: wandb\n", "3:11: tracking.0.type", "write an adapter (docs/"),
    "another tracker with options": (
        GOOD + "tracking: {wandb: {project: x}}\n",
        "3:12: tracking.0.type",
        "unknown tracker 'wandb'",
    ),
    "tracker as a section": (
        GOOD + "mlflow: {uri: x}\n",
        "3:1: mlflow",
        "tracking: [{type: mlflow, uri: URI}]",
    ),
    "tracker elsewhere": (
        GOOD + "logging: {tensorboard: true}\n",
        "3:11: logging.tensorboard",
        "or tracking: [tensorboard]",
    ),
    "tracker typo": (GOOD + "tracking: [mlfow]\n", "3:12: tracking.0.type", "did you mean 'mlflow'?"),
    "metric typo": (
        GOOD + "evaluation: {metrics: [acuracy]}\n",
        "3:24: evaluation.metrics.0",
        "did you mean 'accuracy'?",
    ),
    "metric with split": (
        GOOD + "evaluation: {metrics: [val_f1]}\n",
        "3:24: evaluation.metrics.0",
        "write it without the split: 'f1'",
    ),
    "metric that decides": (
        GOOD + "checkpoint: {metric: val_f2}\n",
        "3:22: checkpoint.metric",
        "unknown metric 'f2'",
    ),
    "train_loss decides": (
        GOOD + "training: {early_stopping: {metric: train_loss}}\n",
        "3:37: training.early_stopping.metric",
        "not an evaluation; use val_loss",
    ),
    "test decides": (GOOD + "checkpoint: {metric: test_f1}\n", "3:22: checkpoint.metric", "use val_f1"),
    "metric without split": (
        GOOD + "checkpoint: {metric: f2}\n",
        "3:22: checkpoint.metric",
        "expected val_loss or val_METRIC, got 'f2'",
    ),
    "plateau metric": (
        GOOD + "training: {scheduler: {type: plateau, metric: train_loss}}\n",
        "3:47: training.scheduler.metric",
        "use val_loss",
    ),
    # keys that contradict each other
    "epochs and steps": (
        GOOD + "training:\n  epochs: 1\n  max_steps: 9\n",
        "5:3: training.max_steps",
        "keep one",
    ),
    "microbatch": (
        GOOD + "training: {microbatch_size: 33}\n",
        "3:29: training.microbatch_size",
        "more than the batch_size of 32",
    ),
    "warm-up": (
        GOOD + "training: {max_steps: 5, scheduler: {warmup_steps: 9}}\n",
        "3:52: training.scheduler.warmup_steps",
        "do not fit into max_steps: 5",
    ),
    "two sources": (
        "data: {path: a.csv, train_path: b.csv}\nmodel: mlp\n",
        "1:21: data.train_path",
        "both path and train_path",
    ),
    "val without train": (
        "data: {type: digits, val_path: b.csv}\nmodel: mlp\n",
        "1:22: data.val_path",
        "needs train_path",
    ),
    "no source": ("data: {target: y}\nmodel: mlp\n", "1:1: data", "names no source; give type"),
    "file type without file": ("data: {type: csv}\nmodel: mlp\n", "1:1: data", "type csv needs path"),
    "unknown ending": (
        "data: {path: a.dat}\nmodel: mlp\n",
        "1:14: data.path",
        "known: .csv, .tsv, .parquet, .pq, .jsonl",
    ),
    "other ending": (
        "data: {type: csv, path: a.npz}\nmodel: mlp\n",
        "1:25: data.path",
        "has the ending of npz, but data.type is csv; make them agree",
    ),
    "nothing to train on": (
        "data:\n  type: digits\n  split: {val: 0.5, test: 0.5}\nmodel: mlp\n",
        "3:3: data.split",
        "leave nothing to train on",
    ),
    "option twice": (
        "data: {type: digits}\nmodel: {type: mlp, hidden: [3], params: {hidden: [4]}}\n",
        "2:20: model.hidden",
        "given twice",
    ),
    # other spellings
    "old beside new": (
        GOOD + "logging: {log_every_n_steps: 3, every_n_steps: 4}\n",
        "3:11: logging.log_every_n_steps",
        "another spelling of logging.every_n_steps",
    ),
    "old section beside new": (
        GOOD + "checkpoint: {keep_last: 1}\ncheckpointing: {keep_n_checkpoints: 3}\n",
        "4:17: checkpointing.keep_n_checkpoints",
        "another spelling of checkpoint.keep_last",
    ),
    "precision twice": (
        GOOD + "training: {mixed_precision: true, precision: fp32}\n",
        "3:12: training.mixed_precision",
        "keep one",
    ),
    "uri beside tracking": (
        GOOD + "tracking: []\nexperiment: {tracking_uri: x}\n",
        "4:14: experiment.tracking_uri",
        "another spelling of tracking",
    ),
    "accumulation beside microbatch": (
        GOOD + "training: {gradient_accumulation_steps: 2, microbatch_size: 4}\n",
        "3:12: training.gradient_accumulation_steps",
        "another spelling of training.microbatch_size",
    ),
    "accumulation of text": (
        GOOD + "training: {gradient_accumulation_steps: two}\n",
        "3:41: training.gradient_accumulation_steps",
        "expected a whole number above 0",
    ),
    # variables
    "unset variable": (
        GOOD + "training: {epochs: '${env:TRAINWRIGHT_UNSET}'}\n",
        "3:20: training.epochs",
        "environment variable TRAINWRIGHT_UNSET is not set",
    ),
    "shell variable": (
        GOOD + "experiment: {name: '${HOME}'}\n",
        "3:20: experiment.name",
        "did you mean '${env:HOME}'?",
    ),
    # YAML
    "duplicate key": (
        GOOD + "training:\n  epochs: 1\n  epochs: 2\n",
        "5:3: training.epochs",
        "given twice; first in line 4",
    ),
    "duplicate section": (GOOD + "model: {type: mlp}\n", "3:1: model", "given twice; first in line 2"),
    "tab": (GOOD + "training:\n\tepochs: 1\n", "4:1: ", "indent with spaces, not tabs"),
    "open bracket": (GOOD + "tracking: [mlflow\n", "4:1: ", "a bracket is not closed"),
    "open quote": (GOOD + "experiment: {name: 'x}\n", "4:1: ", "a quote is not closed"),
    "bad indent": (GOOD + "training:\n   epochs: 1\n  batch_size: 3\n", "5:3: ", "indented alike"),
    "no colon": (GOOD + "training:\n  epochs 3\n  batch_size: 2\n", "5:13: ", "not valid YAML"),
    "bare variable in brackets": (
        GOOD + "experiment: {name: ${env:HOME}}\n",
        "3:21: ",
        "inside [ ] or { } is not in quotes",
    ),
    "unknown tag": (
        GOOD + "training: {epochs: !!python/int 3}\n",
        "3:20: training.epochs",
        "is not allowed; write plain YAML values",
    ),
    "unknown alias": (GOOD + "training: *base\n", "3:11: training", "begins with an asterisk: '*base'"),
    "merge of text": (GOOD + "training:\n  <<: epochs\n", "4:7: training", "`<<` takes a mapping"),
    "key that is a list": (GOOD + "training:\n  ? [a]\n  : 3\n", "4:5: training", "a key must be text"),
    "second document": (GOOD + "---\na: 1\n", "3:1: ", "one file holds one config"),
    "yaml 1.1": ("%YAML 1.1\n---\n" + GOOD, "2:1: ", "only YAML 1.2 is read"),
    "control character": (GOOD + 'experiment: {name: "a\x07b"}\n', "3:22: ", "U+0007"),
    "empty": ("", "1:1: ", "is empty; a config needs at least"),
    "only comments": ("# model: mlp\n", "1:1: ", "is empty"),
    "a list": ("- model\n", "1:1: ", "expected sections like `model:` at the top, got a list"),
    "a word": ("mlp\n", "1:1: ", "got the text 'mlp'"),
    "deep": (GOOD + "x: " + "[" * 80 + "]" * 80 + "\n", "3:54: x", "nested more than"),
    # files that are not read
    "mat": (
        "model: mlp\ndata: a.mat\n",
        "2:7: data.type",
        "of scipy.io.loadmat(FILE) in one file first: numpy.savez",
    ),
    "npy": (
        "model: mlp\ndata: {path: a.npy}\n",
        "2:14: data.path",
        "give the folder of X.npy and y.npy, with data.type",
    ),
    "pickle": ("model: mlp\ndata: {path: a.pkl}\n", "2:14: data.path", "write it as CSV or Parquet first"),
    # extends
    "no base": ("extends: nowhere.yaml\n" + GOOD, "1:10: extends", "no such file: nowhere.yaml"),
    "extends a list": ("extends: [a.yaml]\n" + GOOD, "1:10: extends", "expected the path of one YAML file"),
    "extends itself": (
        "extends: bad.yaml\n" + GOOD,
        "1:10: extends",
        "extends itself in a circle: bad.yaml -> bad.yaml",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_names_place_key_and_mend(name, tmp_path, monkeypatch, adapters):
    text, place, mend = BROKEN[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load("bad.yaml", adapters=adapters)
    assert len(caught.value.problems) == 1, str(caught.value)
    message = str(caught.value.problems[0])
    assert message.startswith(f"bad.yaml:{place}"), message
    assert mend in message
    assert caught.value.exit_code == 2
