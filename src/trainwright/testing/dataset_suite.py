"""The contract suite of datasets: equal inputs give equal splits, and no row leaks into another split.

    class TestMine(DatasetSuite):
        def make(self, folder: Path) -> Dataset:
            write_rows(folder / "rows.mine")
            config = DataConfig(type="mine", path=str(folder / "rows.mine"), target="y")
            return MineDataset(config, MineDataset.Params())

        def raw_rows(self, folder: Path) -> Any:
            return [{"x": 1.0, "y": 0}, ...]        # the rows of the file, in its order

The contract is in `datasets/base.py`. The data should have at least 50 rows, all different. A test whose
subject the data set does not have, such as a preparation, is skipped with the reason.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwright.datasets.base import PLAIN, ArraySplit, DataBundle, Dataset, LoadRequest, Preparation, Split
from trainwright.datasets.tables.preparation import TabularPreparation, from_json
from trainwright.plugins import task_for
from trainwright.types import FEATURES, INPUT_IDS, NO_LABEL, FeatureForm

HEAVY = ("pandas", "pyarrow", "sklearn", "scipy", "torch", "tensorflow", "datasets")


class DatasetSuite:
    """Tests of the contract; subclass it in a test module of the adapter."""

    def make(self, folder: Path) -> Dataset:
        """Return a new dataset object over the same rows, in any folder that exists."""
        raise NotImplementedError

    def raw_rows(self, folder: Path) -> Any:  # noqa: ARG002
        """Return the rows as `Preparation.features` takes them, in order; None without preparation."""
        return None

    @pytest.fixture
    def bundle(self, tmp_path: Path) -> DataBundle:
        """Load the data set."""
        return self.make(tmp_path).load(PLAIN)

    def test_it_has_names_and_options(self, tmp_path: Path) -> None:
        """It has names without a colon, and a schema of its options."""
        cls = type(self.make(tmp_path))
        assert all(name and ":" not in name for name in cls.names)
        assert cls.Params.model_json_schema()["type"] == "object"

    def test_is_light_to_import(self, tmp_path: Path) -> None:
        """Importing its module imports no heavy library."""
        module = type(self.make(tmp_path)).__module__
        code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
        path = json.dumps(sys.path)
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {path}; {code}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == "[]"

    def test_another_folder_gives_the_same_splits(self, bundle: DataBundle, tmp_path: Path) -> None:
        """Equal inputs in another folder give equal splits."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        again = self.make(elsewhere).load(PLAIN)
        assert {name: split.fingerprint() for name, split in again.splits.items()} == _fingerprints(bundle)
        assert again.info == bundle.info
        for name, rows in bundle.rows.items():
            np.testing.assert_array_equal(rows, again.rows[name])

    def test_prepares_tables_in_the_form_asked_for(self, bundle: DataBundle, tmp_path: Path) -> None:
        """Prepared features have the dtype that the request names."""
        if not isinstance(bundle.preparation, TabularPreparation):
            pytest.skip("the columns of this data set are not prepared")
        wide = self.make(tmp_path).load(LoadRequest(FeatureForm("float64")))
        assert {_features(split).dtype.name for split in bundle.splits.values()} == {"float32"}
        assert {_features(split).dtype.name for split in wide.splits.values()} == {"float64"}

    def test_draws_on_no_global_generator(self, tmp_path: Path) -> None:
        """Loading leaves the global random generators alone."""
        random.seed(1)
        np.random.seed(1)
        before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        self.make(tmp_path).load(PLAIN)
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]

    def test_has_rows_to_train_on_and_splits_that_differ(self, bundle: DataBundle) -> None:
        """There are training rows, no empty split, and no two equal splits."""
        assert "train" in bundle.splits
        assert all(len(split) > 0 for split in bundle.splits.values())
        assert len(set(_fingerprints(bundle).values())) == len(bundle.splits)

    def test_no_row_is_in_two_splits(self, bundle: DataBundle) -> None:
        """Each row is in one split at most; without `rows`, no two splits have an equal sample."""
        if len(bundle.splits) == 1:
            pytest.skip("there is only one split")
        if bundle.rows:
            assert {name: len(rows) for name, rows in bundle.rows.items()} == {
                n: len(s) for n, s in bundle.splits.items()
            }
            every = np.concatenate(list(bundle.rows.values()))
            assert len(np.unique(every)) == len(every)
            return
        hashes = {name: _sample_hashes(split) for name, split in bundle.splits.items()}
        for one, other in itertools.combinations(hashes, 2):
            both = hashes[one] & hashes[other]
            assert not both, f"{len(both)} samples are in both {one} and {other}"

    def test_samples_are_as_its_info_says(self, bundle: DataBundle) -> None:
        """Shapes, dtypes and classes are those of its info."""
        info, task = bundle.info, task_for(bundle.info)
        assert not info.feature_names or info.input_shape == (len(info.feature_names),)
        for split in bundle.splits.values():
            count = min(len(split), 100)
            batch = split.take(np.arange(count))
            for name, spec in info.inputs.items():
                assert batch[name].shape == (count, *spec.shape)
                assert str(batch[name].dtype) == spec.dtype
                assert np.isfinite(batch[name]).all()
            target, blank = batch[task.target], task.blank_targets(count)
            assert (target.shape, target.dtype) == (blank.shape, blank.dtype)
            if info.classes is not None:
                assert info.outputs == len(info.classes)
            if target.dtype == np.int64:
                assert ((target == NO_LABEL) | ((target >= 0) & (target < info.outputs))).all()

    def test_take_gives_the_rows_asked_for_in_that_order(self, bundle: DataBundle) -> None:
        """`take` returns the requested rows in the requested order."""
        for split in bundle.splits.values():
            ids = np.array([len(split) - 1, 0, 0], dtype=np.int64)
            batch = split.take(ids)
            for i, one in enumerate(ids):
                single = split.take(np.array([one]))
                assert batch.keys() == single.keys()
                for name in batch:
                    np.testing.assert_array_equal(batch[name][i], single[name][0])

    def test_what_take_gives_is_a_copy(self, bundle: DataBundle) -> None:
        """Writing to a batch does not change the split."""
        split, ids = bundle.splits["train"], np.arange(2)
        for name in split.take(ids):
            before = split.take(ids)[name].copy()
            split.take(ids)[name][:] = 7
            np.testing.assert_array_equal(split.take(ids)[name], before)

    def test_many_threads_may_take(self, bundle: DataBundle) -> None:
        """`take` is safe to call from several threads."""
        split, (name, *_) = bundle.splits["train"], bundle.info.inputs
        chunks = [np.arange(i % len(split), i % len(split) + 1) for i in range(200)]
        with ThreadPoolExecutor(4) as pool:
            taken = list(pool.map(lambda ids: split.take(ids)[name], chunks))
        for ids, array in zip(chunks, taken, strict=True):
            np.testing.assert_array_equal(array, split.take(ids)[name])

    def test_arrays_are_what_take_gives(self, bundle: DataBundle) -> None:
        """The arrays of a split equal its batches."""
        in_memory = [split for split in bundle.splits.values() if isinstance(split, ArraySplit)]
        if not in_memory:
            pytest.skip("no split has its samples as arrays")
        for split in in_memory:
            batch = split.take(np.arange(len(split)))
            assert split.arrays.keys() == batch.keys()
            for name, array in split.arrays.items():
                np.testing.assert_array_equal(array, batch[name])
                assert array.flags.c_contiguous

    def test_preparation_survives_json(self, bundle: DataBundle, tmp_path: Path) -> None:
        """A preparation read back from JSON gives equal arrays."""
        rows, preparation = self._raw_rows_to_prepare(bundle, tmp_path)
        again = from_json(json.loads(json.dumps(preparation.to_json())))
        np.testing.assert_array_equal(again.features(rows), preparation.features(rows))
        np.testing.assert_array_equal(again.targets(rows), preparation.targets(rows))

    def test_preparing_raw_rows_gives_what_was_trained_on(self, bundle: DataBundle, tmp_path: Path) -> None:
        """Preparing the raw rows gives the features of the splits."""
        rows, preparation = self._raw_rows_to_prepare(bundle, tmp_path)
        if not bundle.rows:
            pytest.skip("the bundle does not say which rows its splits have")
        features = preparation.features(rows)
        for name, split in bundle.splits.items():
            np.testing.assert_array_equal(features[bundle.rows[name]], _features(split))

    def test_preparation_is_fitted_on_training_rows_alone(self, bundle: DataBundle) -> None:
        """Standardized columns have mean 0 and deviation 1 on the training rows."""
        if bundle.preparation is None:
            pytest.skip("this data set has no preparation")
        columns = _features(bundle.splits["train"]).T
        # Standardized numbers, as opposed to categories.
        numbers = [column for column in columns if len(np.unique(column)) > 2 and (column < 0).any()]
        if not numbers:
            pytest.skip("no column of the training rows is standardized")
        for column in numbers:
            assert abs(float(column.mean(dtype=np.float64))) < 1e-4
            assert abs(float(column.std(dtype=np.float64)) - 1) < 1e-4

    def _raw_rows_to_prepare(self, bundle: DataBundle, folder: Path) -> tuple[Any, Preparation]:
        """Return the raw rows and the preparation; skip the test if there are none."""
        rows = self.raw_rows(folder)
        if bundle.preparation is None:
            pytest.skip("this data set has no preparation")
        if rows is None:
            pytest.skip("the test class does not override raw_rows")
        return rows, bundle.preparation


def _fingerprints(bundle: DataBundle) -> dict[str, str]:
    return {name: split.fingerprint() for name, split in bundle.splits.items()}


def _features(split: Split) -> Any:
    batch = split.take(np.arange(len(split)))
    return batch[FEATURES if FEATURES in batch else INPUT_IDS]


def _sample_hashes(split: Split) -> set[bytes]:
    """Return the SHA-256 of each sample, with all its arrays."""
    batch = split.take(np.arange(len(split)))
    return {
        hashlib.sha256(b"".join(array.tobytes() for array in sample)).digest()
        for sample in zip(*batch.values(), strict=True)
    }
