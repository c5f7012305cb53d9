"""The settings of Keras and JAX that code of the user's may change for the whole process."""

from __future__ import annotations

import os
import sys

from trainwright.frameworks.keras.backend import own_settings
from trainwright.require import require


def reset() -> None:
    """Give Keras and JAX the settings that they have after their import, and forget the names of layers."""
    keras, mine = require("keras", "keras"), own_settings()
    keras.utils.clear_session(free_memory=False)
    keras.config.set_floatx(mine.get("floatx", "float32"))
    keras.config.set_epsilon(mine.get("epsilon", 1e-7))
    keras.config.set_image_data_format(mine.get("image_data_format", "channels_last"))
    keras.config.set_dtype_policy(keras.config.floatx())
    keras.saving.get_custom_objects().clear()
    if (jax := sys.modules.get("jax")) is not None:
        jax.config.update("jax_enable_x64", os.environ.get("JAX_ENABLE_X64", "0").lower() in ("1", "true"))
        jax.config.update("jax_default_matmul_precision", os.environ.get("JAX_DEFAULT_MATMUL_PRECISION"))
