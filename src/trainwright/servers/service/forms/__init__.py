"""The form of requests: rows of a table, images, texts or arrays, as the model takes them.

A form reads the body of a request, and says what predictors take, for the documentation and for mistakes.
"""

from __future__ import annotations

from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.inference.predictor import Predictor
from trainwright.servers.service.forms.arrays import ArrayForm
from trainwright.servers.service.forms.base import Form
from trainwright.servers.service.forms.images import ImageForm
from trainwright.servers.service.forms.tables import TableForm
from trainwright.servers.service.forms.texts import TextForm
from trainwright.types import FEATURES


def form_of(predictor: Predictor) -> Form:
    """Return the form of requests to a model."""
    preparation = predictor.preparation
    if isinstance(preparation, ImagePreparation):
        return ImageForm(predictor.info.inputs[FEATURES].shape)
    if isinstance(preparation, TextPreparation):
        return TextForm(of_words=preparation.of_words)
    if isinstance(preparation, TabularPreparation | RawPreparation):
        return TableForm(predictor, preparation)
    return ArrayForm(predictor)
