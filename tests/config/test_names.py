"""Models and metrics by the names that people know them by."""

import pytest

from trainwright.config import load, other_models
from trainwright.config.other_models import elsewhere
from trainwright.config.resolved import values
from trainwright.errors import ConfigError
from trainwright.require import install_hint
from trainwright.runs.catalog import Catalog

# What is written -> the model in the resolved config, and the task that the name implies.
SPELLINGS = {
    "xgb": ("xgboost", "auto"),
    "XGBoost": ("xgboost", "auto"),
    "XGBClassifier": ("xgboost", "classification"),
    "XGBRegressor": ("xgboost", "regression"),
    "xgb_classifier": ("xgboost", "classification"),
    "xgboost.XGBClassifier": ("xgboost:XGBClassifier", "auto"),
    "xgboost:XGBClassifier": ("xgboost:XGBClassifier", "auto"),
    "xgb.XGBRegressor": ("xgboost", "regression"),
    "lgb.LGBMClassifier": ("lightgbm", "classification"),
    "svm.SVC": ("svm", "classification"),
    "ensemble.ExtraTreesRegressor": ("extra_trees", "regression"),
    "NN_TORCH": ("mlp", "auto"),
    "huber": ("huber_regressor", "regression"),
    "lgbm": ("lightgbm", "auto"),
    "lgb": ("lightgbm", "auto"),
    "LightGBM": ("lightgbm", "auto"),
    "LGBMRegressor": ("lightgbm", "regression"),
    "lightgbm.LGBMRegressor": ("lightgbm:LGBMRegressor", "auto"),
    "CatBoost": ("catboost", "auto"),
    "cat_boost": ("catboost", "auto"),
    "CatBoostClassifier": ("catboost", "classification"),
    "rf": ("random_forest", "auto"),
    "Random-Forest": ("random_forest", "auto"),
    "RandomForestClassifier": ("random_forest", "classification"),
    "random_forest_regressor": ("random_forest", "regression"),
    "sklearn.ensemble.RandomForestClassifier": ("sklearn.ensemble:RandomForestClassifier", "auto"),
    "sklearn.svm:SVC": ("sklearn.svm:SVC", "auto"),
    "SGDClassifier": ("sgd", "classification"),
    "sgd_classifier": ("sgd", "classification"),
    "logreg": ("logistic_regression", "auto"),
    "LogisticRegression": ("logistic_regression", "classification"),
    "Ridge": ("ridge", "regression"),
    "SVC": ("svm", "classification"),
    "SVM": ("svm", "auto"),
    "KNeighborsClassifier": ("k_neighbors", "classification"),
    "HistGradientBoostingRegressor": ("hist_gradient_boosting", "regression"),
    "ElasticNet": ("elastic_net", "regression"),
    "GaussianNB": ("gaussian_nb", "classification"),
    "MLP": ("mlp", "auto"),
    "neural_net": ("mlp", "auto"),
    "FT-Transformer": ("transformer", "auto"),
    "CNN": ("cnn", "auto"),
    "convnet": ("keras_cnn", "auto"),
    "ResNet18": ("resnet18", "auto"),
    "GPT": ("gpt", "auto"),
}
WITH_FRAMEWORK = {
    ("mlp", "keras"): ("keras_mlp", "keras"),
    ("mlp", "tensorflow"): ("keras_mlp", "keras"),
    ("cnn", "keras"): ("keras_cnn", "keras"),
    ("mlp", "pytorch"): ("mlp", "torch"),
    ("mlp", "tf.keras"): ("keras_mlp", "keras"),
    ("xgboost", "XGBoost"): ("xgboost", "xgboost"),
    ("mlp", "scikit-learn"): ("sklearn_mlp", "sklearn"),
    ("MLPClassifier", "sklearn"): ("sklearn_mlp", "sklearn"),
}


def resolved(model, **sections):
    return load({"data": {"type": "wine"}, "model": model} | sections, adapters=Catalog())


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_model_is_taken(spelling):
    loaded = resolved(spelling)
    assert (loaded.config.model.type, loaded.config.data.task) == SPELLINGS[spelling]
    notes = [note for note in loaded.notes if note.startswith("mapping: model.type: ")]
    assert len(notes) == (spelling != loaded.config.model.type)
    assert all(spelling in note for note in notes)


@pytest.mark.parametrize("spelling", WITH_FRAMEWORK)
def test_a_framework_chooses_among_models_of_one_name(spelling):
    model, framework = spelling
    config = resolved({"type": model, "framework": framework}).config
    assert (config.model.type, config.model.framework) == WITH_FRAMEWORK[spelling]


def test_what_is_resolved_is_read_without_a_note():
    loaded = resolved("XGBClassifier")
    again = load(loaded.config.model_dump(), adapters=Catalog())
    assert not again.notes
    assert again.computation_hash() == loaded.computation_hash()


def test_options_of_a_class_name_are_those_of_the_short_name():
    config = resolved({"type": "XGBClassifier", "max_depth": 3}).config
    assert config.model.params["max_depth"] == 3
    assert config.data.standardize is False  # a default of the framework


def test_a_class_against_the_task_is_refused():
    with pytest.raises(ConfigError, match="XGBClassifier is for classification, but"):
        resolved("XGBClassifier", data={"type": "diabetes", "task": "regression"})


def test_a_class_for_several_labels_keeps_the_task():
    config = resolved("XGBClassifier", data={"type": "wine", "task": "multilabel"}).config
    assert config.data.task == "multilabel"


def test_data_given_as_objects():
    config = load({"model": "XGBClassifier"}, adapters=Catalog(), objects=True).config
    assert config.data.task == "classification"
    assert load({"model": "XGBClassifier"}, adapters=Catalog()).config.data is None


@pytest.mark.parametrize(
    ("model", "mend"),
    {
        "resnet101": "torchvision.models:resnet101",
        "vit": "timm:create_model",
        "bert-base-uncased": "AutoModelForSequenceClassification', path: bert-base-uncased}",
        "resnet81": "nearest of ours: resnet18, resnet50, resnet34; torchvision has resnet152",
        "ResNet-152": "torchvision.models:resnet152'",
        "AutoModelForCausalLM": "write model: {type: 'transformers:AutoModelForCausalLM', path: FOLDER}",
        "AutoModelForImageClassification": "of transformers there are",
        "gpt2": "path: gpt2}, or AutoModelForCausalLM",
        "StackingClassifier": "trainwright.train(config, model=StackingClassifier(...))",
        "KMeans": "Trainwright trains classifiers, regressors and language models",
        "gru": "my_module:Net",
        "lr": "logistic_regression for classes",
        "GBM": "write lightgbm",
        "TabPFN": "nearest: transformer",
        "Sequential": "give the object in Python",
        "automl": "--model auto",
        "best": "--model auto",
        "xgbost": "did you mean 'xgboost'?",
        "nonsense": "which `trainwright config names model` shows",
        "{type: random_forest, framework: xgboost}": "sklearn has it as random_forest",
    }.items(),
)
def test_a_model_that_no_framework_has(model, mend, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(f"data: wine\nmodel: {model}\n")
    with pytest.raises(ConfigError) as caught:
        load(file, adapters=Catalog())
    assert mend in str(caught.value)
    assert len(str(caught.value)) < 450
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("name", ["vggish", "ganache", "clipper", "swine", "bertram", "evaluate"])
def test_a_name_that_only_begins_like_a_model_of_others_has_no_hint(name):
    assert elsewhere(name) is None


@pytest.mark.parametrize(
    "name", ["BertModel", "bert_large", "xlm-roberta-base", "stackingclassifier", "KMeans"]
)
def test_a_name_that_begins_with_the_word_of_a_model_has_one(name):
    assert elsewhere(name) is not None


def test_a_model_of_a_missing_library_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(other_models, "find_spec", lambda name: None)
    assert f"; {install_hint('torch', 'torchvision')}" in elsewhere("resnet101")
    assert f"; {install_hint('torch', 'timm')}" in elsewhere("vit_base_patch16_224")
    monkeypatch.setattr(other_models, "find_spec", lambda name: name)
    assert "pip" not in elsewhere("resnet101")


METRICS = {
    "auc": "roc_auc",
    "AUC": "roc_auc",
    "acc": "accuracy",
    "logloss": "log_loss",
    "F1": "f1",
    "macro_f1": "f1_macro",
    "mean_absolute_error": "mae",
    "RMSE": "rmse",
    "r2_score": "r2",
    "pr_auc": "average_precision",
}


@pytest.mark.parametrize("name", METRICS)
def test_metrics_by_other_names(name):
    config = resolved("xgboost", evaluation={"metrics": [name]}, checkpoint={"metric": name}).config
    assert config.evaluation.metrics == [METRICS[name]]
    assert config.checkpoint.metric == f"val_{METRICS[name]}"


@pytest.mark.parametrize("name", ["val_auc", "valid_auc", "val/roc_auc", "eval_auc", "auc"])
def test_a_metric_that_decides_is_one_of_the_validation(name):
    loaded = resolved("xgboost", checkpoint={"metric": name})
    assert loaded.config.checkpoint.metric == "val_roc_auc"
    assert len(loaded.notes) == 1


@pytest.mark.parametrize("name", ["val_auc", "valid_auc", "auc", "roc_auc"])
def test_the_metric_of_a_search_is_read_like_the_others(name):
    space = {"training.epochs": [1, 2]}
    loaded = resolved("xgboost", tuning={"metric": name, "space": space})
    assert loaded.config.tuning.metric == "val_roc_auc"
    assert len(loaded.notes) == 1
    several = resolved("xgboost", tuning={"metric": [name, "latency_ms", "parameters"], "space": space})
    assert several.config.tuning.metric == ["val_roc_auc", "latency_ms", "parameters"]


@pytest.mark.parametrize("name", ["train_loss", "test_auc"])
def test_metrics_of_other_splits_decide_nothing(name):
    with pytest.raises(ConfigError, match="use val_"):
        resolved("xgboost", checkpoint={"metric": name})


def test_an_own_metric_comes_before_another_metric_that_its_name_may_mean():
    """`top1` is another name of `accuracy`."""
    decides = {"checkpoint": {"metric": "val_top1"}}
    assert resolved("mlp", **decides).config.checkpoint.metric == "val_accuracy"
    own = resolved("mlp", **decides, evaluation={"metrics": ["mine:top1"]})
    assert own.config.checkpoint.metric == "val_top1"
    assert not own.notes


def test_options_of_an_own_loss_stand_beside_its_type():
    given = {"type": "mine:Poly", "epsilon": 2}
    for loss in (given, {"type": "mine.losses.Poly", "params": {"epsilon": 2}}):
        training = resolved("mlp", training={"loss": loss}).config.training
        assert training.loss in ("mine:Poly", "mine.losses:Poly")
        assert training.loss_params == {"epsilon": 2}
    whole = resolved("mlp", training={"loss": given})
    again = load(values(whole.config), adapters=Catalog())
    assert again.config == whole.config
    assert not again.notes
    other = load(values(whole.config), {"training.loss.epsilon": 3}, adapters=Catalog()).config.training
    assert other.loss_params == {"epsilon": 3}
    without = load(values(whole.config), {"training.loss": "focal"}, adapters=Catalog())
    assert without.config.training.loss_params == {}
    assert "mine:Poly's params dropped" in " ".join(without.notes)


def test_the_name_of_its_loss_stands_for_a_head():
    heads = resolved("mlp", training={"heads": {"age": "mse"}}).config.training.heads
    assert (heads["age"].loss, heads["age"].weight) == ("mse", 1.0)


def test_an_own_model_may_have_an_argument_name():
    own = resolved({"type": "mine:create", "framework": "torch", "name": "small"}).config.model
    assert (own.type, own.params) == ("mine:create", {"name": "small"})
    assert resolved({"name": "mlp"}).config.model.type == "mlp"
