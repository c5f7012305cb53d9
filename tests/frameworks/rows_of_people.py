"""A data frame of numbers, categories, free text and booleans, with holes, and a target of two classes."""

import numpy as np
import pandas as pd

_RNG = np.random.default_rng(7)
_COUNT = 300
PEOPLE = pd.DataFrame(
    {
        "age": _RNG.normal(40, 12, _COUNT),
        "children": _RNG.integers(0, 4, _COUNT),
        "city": _RNG.choice(["Rome", "Paris", "Oslo"], _COUNT),
        "about": _RNG.choice(["likes blue boats", "has a red car", "walks a lot"], _COUNT),
        "member": _RNG.random(_COUNT) < 0.5,
    }
)
_SCORE = (PEOPLE["age"] - 40) / 12 + (PEOPLE["city"] == "Rome") + 2 * PEOPLE["about"].str.contains("red")
PEOPLE["bought"] = np.where(_SCORE + _RNG.normal(0, 0.5, _COUNT) > 1, "yes", "no")
PEOPLE.loc[[3, 50, 280], "age"] = np.nan
PEOPLE.loc[[8, 275], "city"] = np.nan
