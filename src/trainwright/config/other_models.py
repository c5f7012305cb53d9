"""Models of other packages: where to get them, and how to write them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from importlib.util import find_spec

from trainwright.config.adapters import Adapters
from trainwright.config.synonyms import fold
from trainwright.config.words import nearest, some
from trainwright.require import library_hint

# Models of other packages, by the beginnings of their folded names, and where to get them.
_OWN = "it is not among Trainwright's own models; "
_VISION = _OWN + "torchvision has it: write model: {{type: 'torchvision.models:{}', num_classes: N}}"
_TIMM = (
    _OWN + "models of timm are written: model: {{type: 'timm:create_model', model_name: {}, num_classes: N}}"
)
_AUTO = (
    "name the class with its package, and the model: write model: {{type: 'transformers:{}', path: FOLDER}} "
)
_AUTO += "(docs/huggingface.md)"
_LANGUAGE = (
    _OWN + "models of transformers are written: model: {{type: "
    "'transformers:AutoModelForSequenceClassification', path: {}}}, or AutoModelForCausalLM "
    "(docs/huggingface.md)"
)
# Packages of which only some classes are models here.
OTHER_CLASSES = {
    "transformers": "of transformers there are transformers:AutoModelForSequenceClassification and "
    "transformers:AutoModelForCausalLM (docs/huggingface.md); for another class name a function of yours "
    "that makes the model: {type: 'my_module:build', framework: torch}"
}
_OBJECT = (
    "it is built from other models: pass the object from Python, trainwright.train(config, model={}(...))"
)
_IN_PYTHON = (
    "give the object in Python, trainwright.train(config, model=...), or its class: model: my_module:Net"
)
_NO_TASK = "Trainwright trains classifiers, regressors and language models; {} is none of these"
_COMPARED = (
    "trainwright init FILE --target COLUMN --model auto compares a few models and proposes the best; "
    "trainwright benchmark CONFIG --models lightgbm,random_forest,mlp compares those that you name"
)
# The classifiers of torchvision, whose numbers stand for sizes that exist.
_TORCHVISION = [
    *("alexnet", "convnext_tiny", "convnext_small", "convnext_base", "convnext_large", "densenet121"),
    *("densenet161", "densenet169", "densenet201", "efficientnet_b0", "efficientnet_b1"),
    *("efficientnet_b2", "efficientnet_b3", "efficientnet_b4", "efficientnet_b5", "efficientnet_b6"),
    *("efficientnet_b7", "efficientnet_v2_s", "efficientnet_v2_m", "efficientnet_v2_l", "googlenet"),
    *("inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3"),
    *("mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_400mf", "regnet_x_800mf"),
    *("regnet_x_1_6gf", "regnet_x_3_2gf", "regnet_x_8gf", "regnet_x_16gf", "regnet_x_32gf"),
    *("regnet_y_400mf", "regnet_y_800mf", "regnet_y_1_6gf", "regnet_y_3_2gf", "regnet_y_8gf"),
    *("regnet_y_16gf", "regnet_y_32gf", "regnet_y_128gf", "resnet18", "resnet34", "resnet50"),
    *("resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
    *("shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0"),
    *("squeezenet1_0", "squeezenet1_1", "swin_t", "swin_s", "swin_b", "swin_v2_t", "swin_v2_s"),
    *("swin_v2_b", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19"),
    *("vgg19_bn", "vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14", "wide_resnet50_2"),
    *("wide_resnet101_2",),
]
_OURS = ("cnn", "resnet18", "resnet34", "resnet50")  # our models of images
_FEW = 3  # names that a hint lists
# By the beginning of a name, in which a word must end.
MODELS_ELSEWHERE = (
    (r"lr$", "write logistic_regression for classes, or linear_regression for values"),
    (r"gbm$", "write lightgbm, xgboost, catboost or gradient_boosting"),
    (r"auto(ml|gluon|sklearn)?$|best$|(weighted)?ensemble", _COMPARED),
    (
        r"tabnet|tabpfn|fastai|tabm|realmlp|nodemodel|saint|catembed|tabtransformer",
        _OWN + "nearest: transformer (the FT-Transformer), mlp; or write a class: model: my_module:Net",
    ),
    (r"(sequential|functional|module|lightningmodule)$", _IN_PYTHON),
    (
        r"(wide)?(resnet|resnext)(v\d|\d+[a-z]?)?|vgg|densenet|alexnet|squeezenet|inception(v\d)?|googlenet|"
        r"mobilenet(v\d)?|efficientnet(v\d|b\d)?|regnet[xy]?|shufflenet(v\d)?|mnasnet|convnext(v\d)?|"
        r"swin(v\d)?|maxvit|vit[bhl]\d",
        _VISION,
    ),
    (r"vit|deit3?|beit(v\d)?|nfnet|eva\d+|mixer|hrnet|xception", _TIMM),
    (r"automodelfor(causallm|sequenceclassification)$", _AUTO),
    (r"automodel(for[a-z0-9]+)?", OTHER_CLASSES["transformers"].replace("{", "{{").replace("}", "}}")),
    (
        r"(distil|al|de|xlm)?(ro)?berta?|xlmr|electra|deberta(v\d)?|gpt\d|gptneox?|gptj|distilgpt|opt\d+m?|"
        r"llama|mistral|mixtral|qwen|phi\d?|gemma|falcon|(flan)?t5|bart|bloom|whisper|clip|wav2vec|deepseek",
        _LANGUAGE,
    ),
    (
        r"stacking|voting|pipeline|gridsearch|randomizedsearch|multioutput|onevs(rest|one)|columntransformer",
        _OBJECT,
    ),
    (
        r"(mini)?(batch)?kmeans|dbscan|pca|tsne|umap|isolationforest|oneclasssvm|agglomerative|xgbranker|"
        r"lgbmranker|catboostranker|yolo|fasterrcnn|maskrcnn|prophet|arima",
        _NO_TASK,
    ),
    (
        r"gru|rnn|autoencoder|vae|gan|gnn|gcn|custom",
        "write it as a class of yours: model: my_module:Net",
    ),
)


# What a class is called after its model, in any case: `StackingClassifier`, `stackingclassifier`.
_ENDING = re.compile(r"(classifier|regressor|model|network|net|cv)")


def elsewhere(name: str) -> str | None:
    """Return where to get a model that other packages have, and how to write it; None if it is not known."""
    word = fold(name)
    known = {fold(one): one for one in _TORCHVISION}
    if word in known:
        return _VISION.format(known[word]) + _needs("torchvision")
    hint = next((hint for pattern, hint in MODELS_ELSEWHERE if _begins(name, pattern)), None)
    if hint is None:
        return None
    if hint is _TIMM:
        return hint.format(name) + _needs("timm")
    return hint.format(name) if hint is not _VISION else _nearest(name, word, known)


def _begins(name: str, pattern: str) -> bool:
    """Return whether a name begins with a word that a pattern describes: `bert_base`, but not `bertram`."""
    letters = [index for index, letter in enumerate(name) if fold(letter)]
    match = re.match(f"(?:{pattern})", fold(name))
    if match is None:
        return False
    rest = fold(name)[match.end() :]
    after = name[letters[match.end() - 1] + 1 :]
    return not rest or bool(_ENDING.match(rest)) or not after[:1].islower()


def _nearest(name: str, word: str, known: Mapping[str, str]) -> str:
    """Return the hint for a name that is like those of models of images, ours first."""
    ours = difflib.get_close_matches(word, _OURS, _FEW)
    theirs = [known[one] for one in difflib.get_close_matches(word, known, _FEW) if one not in ours]
    parts = ["there is no such model" + (f"; nearest of ours: {', '.join(ours)}" if ours else "")]
    if theirs:
        parts.append(
            f"torchvision has {', '.join(theirs)}: write model: {{type: 'torchvision.models:{theirs[0]}', "
            f"num_classes: N}}{_needs('torchvision')}"
        )
    else:
        parts.append(_TIMM.removeprefix(_OWN).format(name) + _needs("timm"))
    return "; ".join(parts)


def _needs(library: str) -> str:
    """Return how to install a library, if it is missing."""
    return "" if find_spec(library) else f"; {library_hint(library)}"


def unknown_model(name: str, framework: str | None, adapters: Adapters) -> str:
    """Return the message for a model that no framework has, or that the chosen one has not."""
    if (hint := elsewhere(name)) is not None:
        return f"model {name}: {hint}"
    if framework is not None:
        models = adapters.names("model", framework)
        near = nearest(name, models)
        if not near and (meaning := adapters.model_meant(name)) is not None:
            near = f"; {meaning.framework} has it as {meaning.name}: leave model.framework out"
        listed = some(models, name, "model")
        return f"model {name}: {framework} has no such model; known: {listed}{near}"
    known, broken = adapters.names("model"), adapters.broken("model")
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # RandomForestClassifier
    bare = re.sub(r"_(classifier|regressor|model)$", "", snake)
    near = nearest(name, known) or nearest(bare, known)
    hints = [] if near else [f"known: {some(known, bare, 'model')}", "or package.module:Class"]
    return "; ".join([f"model {name}: no installed framework has it{near}", *hints, *broken])
