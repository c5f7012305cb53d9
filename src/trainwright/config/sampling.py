"""Training samples that are drawn with replacement, some more often than others."""

from __future__ import annotations

from trainwright.config.fields import Section, bits

BALANCED = "balanced"


class SamplingConfig(Section):
    """Training samples drawn with replacement, by weights; `sampling: balanced` is short for its weight."""

    weight: str = bits(
        description="balanced: every class is drawn equally often; or the name of the weights (a column, a "
        "named array, or an attribute of a map-style data set): samples are drawn in proportion to them"
    )
    num_samples: int | None = bits(
        default=None, gt=0, description="draws in an epoch; default: as many as there are training rows"
    )

    @property
    def column(self) -> str | None:
        """The column of weights; None if they follow from the classes."""
        return None if self.weight == BALANCED else self.weight


def sampling_column(sampling: SamplingConfig | None) -> str | None:
    """Return the column of the sampling weights; None if the config names none."""
    return None if sampling is None else sampling.column
