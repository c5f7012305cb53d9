"""The section `data.split`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainwright.config.fields import Fraction, Section, bits

DEFAULT_TEST_SHARE = 0.1  # of the rows, if all come from one source


class SplitConfig(Section):
    """The division of rows from one source."""

    val: Fraction = bits(default=0.1, description="fraction of the rows for validation")
    test: Fraction | None = bits(
        default=None,
        description="fraction of the rows for the test; default: 0.1, or none if train_path is given",
    )
    stratify: bool | None = bits(
        default=None, description="keep the class shares in each split; default: yes for classification"
    )
    group: str | None = bits(default=None, description="column whose equal values must stay in one split")
    time: str | None = bits(
        default=None,
        description="column to split by time: the oldest rows train, the newest test; it is learned from "
        "only where there is no other column, or data.features lists it",
    )
    folds: int | None = bits(
        default=None,
        ge=2,
        description="cross-validation: cut the rows into this many folds, one of which is the test split; "
        "`val` is then a share of the other rows, and with `time` a fold trains on older rows only",
    )
    fold: int | None = bits(
        default=None, ge=0, description="which of the folds is the test split, counted from 0"
    )
    val_folds: int | None = bits(
        default=None,
        ge=2,
        description="tuning by cross-validation: cut the rows that do not test into this many folds, one of "
        "which is the validation split; the rows of the test split are in no split",
    )
    val_fold: int | None = bits(
        default=None, ge=0, description="which of `val_folds` is the validation split, counted from 0"
    )
    by: Literal["random", "hash"] = bits(
        default="random",
        description="random: as many rows as the shares say are drawn; hash: the split of a row is a "
        "function of its key and the seed, so that rows stay where they are while the table grows",
    )
    key: str | Annotated[list[str], Field(min_length=1)] | None = bits(
        default=None,
        description="with `by: hash`: the column, or columns, whose values decide the split of a row; they "
        "are learned from only if data.features lists them; default: the whole content of the row",
    )
    seed: int = bits(
        default=0,
        ge=0,
        lt=2**63,
        description="seed of the split, apart from experiment.seed, so that runs with different seeds see "
        "the same rows",
    )

    @property
    def keys(self) -> list[str]:
        """The columns of the key; empty for the content of the row."""
        return [self.key] if isinstance(self.key, str) else list(self.key or ())

    @property
    def without_columns(self) -> SplitConfig:
        """The section without the settings that name or need columns of the rows."""
        return self.model_copy(update={"by": "random", "key": None, "group": None, "time": None})

    @model_validator(mode="after")
    def _check_hash(self) -> SplitConfig:
        if self.by != "hash":
            if self.key is not None:
                raise ValueError(
                    "key also needs by: hash; in splits that are drawn, group keeps rows together"
                )
            return self
        if self.group is not None:
            raise ValueError(
                f"by: hash and group are both given; rows of one key stay together: write key: {self.group} "
                "and leave group out"
            )
        if self.time is not None:
            raise ValueError(
                "by: hash and time are both given, and a hash knows no older rows; keep one of them"
            )
        if self.stratify:
            raise ValueError(
                "by: hash and stratify are both given: the split of a row depends on its key alone, so the "
                "shares of classes are kept on average only; leave stratify out"
            )
        return self

    @model_validator(mode="after")
    def _check_fold(self) -> SplitConfig:
        if self.folds is None and self.fold is not None:
            raise ValueError("fold also needs folds, the number of folds")
        if self.folds is not None and self.fold is None:
            raise ValueError(
                f"folds also needs fold, 0 to {self.folds - 1}; `trainwright cross-validate` "
                "trains all of them"
            )
        if self.folds is not None and self.fold is not None and self.fold >= self.folds:
            raise ValueError(
                f"fold {self.fold} does not exist: the {self.folds} folds are numbered 0 to {self.folds - 1}"
            )
        if self.folds is not None and self.test is not None:
            raise ValueError("test and folds are both given: a fold is the test split; leave test out")
        return self

    @model_validator(mode="after")
    def _check_val_fold(self) -> SplitConfig:
        if (self.val_folds is None) != (self.val_fold is None):
            raise ValueError("val_folds and val_fold belong together; `trainwright tune` sets both")
        if self.val_folds is not None and self.val_fold is not None and self.val_fold >= self.val_folds:
            raise ValueError(
                f"val_fold {self.val_fold} does not exist: the {self.val_folds} folds are numbered 0 to "
                f"{self.val_folds - 1}"
            )
        if self.val_folds is not None and self.folds is not None:
            raise ValueError("folds and val_folds are both given; keep one")
        return self
