"""WebDataset shards: tar files, in which the files of a sample have one name and different extensions.

`0001.jpg` and `0001.cls`, one after the other, are a sample with the fields `jpg` and `cls`. An index of each
shard says where its files are, so samples are read in any order; shards may be larger than memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.images.decoders import TEXTS, ImageForm, decoder_of
from trainwright.datasets.samples import map_style
from trainwright.datasets.samples.custom import SampleFunction, sample_function
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.samples.shards import Indexer, Shard, ShardFiles, Tables, open_shards
from trainwright.datasets.tables.table import nearest
from trainwright.datasets.tables.target import require_target
from trainwright.datasets.webdataset.tar import Member, member_at, members
from trainwright.digest import sha256_json
from trainwright.errors import DataError
from trainwright.types import Array, SplitName

_NAME = re.compile(r"((?:.*/|)[^./]+)\.([^/]+)")  # the name of a sample, and the field
_CLASS = "cls"


class WebdatasetParams(Section):
    """The options of decoding the fields of samples."""

    images: ImageForm = Field(
        "torchrgb",
        description="how images are decoded, in webdataset's terms: torchrgb is (channels, height, "
        "width) in float32 from 0 to 1; l is gray; without torch, channels are last; with 8, values "
        "are uint8",
    )
    classes: int | list[str | int] | None = Field(
        None, description="the number of classes, or their labels; default: those of the training samples"
    )
    transform: str | None = Field(
        None,
        description="package.module:function of a sample, a mapping of decoded fields, that returns "
        "(features, target) or a mapping of named arrays; default: data.features and data.target name them",
    )


class WebdatasetDataset:
    """WebDataset shards, a pattern of paths for each split."""

    names: ClassVar[Sequence[str]] = ("webdataset",)
    Params: ClassVar[type[BaseModel]] = WebdatasetParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, WebdatasetParams)
        self._config = config
        self._params = params

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        require_target(self._config)
        paths = paths_by_split(self._config)
        map_style.refuse_settings_of_tables(self._config)
        if self._config.exclude:
            raise DataError(
                "data.exclude: name the fields to learn from in data.features instead, and leave it out"
            )
        shards = {name: open_shards(path, INDEXER) for name, path in paths.items()}
        fields = list(shards["train"][0].table["fields"].tolist())
        config = self._config
        if "target" not in fields and config.target == DataConfig.model_fields["target"].default:
            config = config.model_copy(update={"target": _CLASS})
        sets: dict[SplitName, TarSamples] = {
            name: TarSamples(some, config, self._params) for name, some in shards.items()
        }
        return map_style.bundle(sets, config, request)


class TarSamples:
    """The samples of some shards, as a map-style data set."""

    def __init__(self, shards: Sequence[Shard], config: DataConfig, params: WebdatasetParams) -> None:
        self._files = ShardFiles(shards, [len(shard.table["offsets"]) for shard in shards])
        self._fields = [{str(name): i for i, name in enumerate(shard.table["fields"])} for shard in shards]
        self._config = config
        self._params = params
        self._transform: SampleFunction | None = None
        if params.transform is not None:
            self._transform = sample_function(params.transform, "data.transform")
        if params.classes is not None:
            self.classes = params.classes if isinstance(params.classes, list) else list(range(params.classes))
        self._inputs = list(config.features or self._all_inputs())
        self._decoders = {
            name: decoder_of(name, params.images)
            for name in sorted({name for fields in self._fields for name in fields})
            if self._transform is not None or self._is_used(name)
        }

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, position: int) -> Any:
        """Return a sample as `Items` takes it."""
        if self._transform is not None:
            return self._transform(self.fields(position, list(self._decoders)))
        names = [*self._inputs, self._config.target_name]
        decoded = self.fields(position, [name for name in self._decoders if self._is_used(name)])
        values = [_value(decoded, name) for name in names]
        if len(values) == 2:
            return tuple(values)
        return {name.replace(".", "_"): value for name, value in zip(names[:-1], values, strict=False)} | {
            names[-1]: values[-1]
        }

    def fields(self, position: int, names: Sequence[str]) -> dict[str, Any]:
        """Return decoded fields of a sample, those that it has."""
        number, row = self._files.locate(position)
        shard, columns, decoded = self._files.shards[number], self._fields[number], dict[str, Any]()
        offsets, sizes = shard.table["offsets"][row], shard.table["sizes"][row]
        for name in names:
            column = columns.get(name)
            if column is None or sizes[column] < 0:
                continue
            data = self._files.read(number, int(offsets[column]), int(sizes[column]))
            try:
                decoded[name] = self._decoders[name](data)
            except Exception as error:
                member = f"{shard.name}: {member_at(shard.path, int(offsets[column]))} (sample {row})"
                raise DataError(f"{member} cannot be decoded: {type(error).__name__}: {error}") from error
        return decoded

    @property
    def is_stored(self) -> bool:
        """True where no function of the user's takes part; see `StoredSamples`."""
        return self._transform is None

    @property
    def is_converted(self) -> bool:
        """True where samples are read from copies; see `StoredSamples`."""
        return False

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each shard, by its name."""
        return self._files.files

    def name_of(self, position: int) -> str:
        """Return the name of a sample in messages."""
        number, row = self._files.locate(position)
        return f"sample {row} of {self._files.shards[number].name}"

    @cached_property
    def targets(self) -> Array | None:
        """The targets of all samples, if they are classes, which the index holds."""
        if self._transform is not None or self._config.target_name != _CLASS:
            return None
        known = [shard.table[_CLASS] for shard in self._files.shards if _CLASS in shard.table]
        return np.concatenate(known) if len(known) == len(self._files.shards) else None

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' contents, and of how they are decoded."""
        return sha256_json(
            ["webdataset", self._files.sha256s, self._inputs, self._config.target_name, self._params.images]
        )

    def _all_inputs(self) -> list[str]:
        """Return the fields that the model gets by default: all of the first sample but text."""
        fields = self._files.shards[0].table["fields"].tolist()
        target = self._config.target_name.partition(".")[0]
        return [name for name in fields if name != target and name.rpartition(".")[2] not in (*TEXTS, "json")]

    def _is_used(self, name: str) -> bool:
        used = (*self._inputs, self._config.target_name)
        return any(one == name or one.startswith(f"{name}.") for one in used)


def _value(decoded: Mapping[str, Any], name: str) -> Any:
    """Return a field, or what is at a key of a JSON field (`json.label`).

    Raises:
        DataError: The sample has none.
    """
    if name in decoded:
        return decoded[name]
    field = next((field for field in decoded if name.startswith(f"{field}.")), None)
    if field is not None:
        value = decoded[field]
        for key in name.removeprefix(f"{field}.").split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise DataError(f"there is no {name}")
            value = value[key]
        return value
    raise DataError(f"the sample has no field {name!r}; {nearest(name, decoded)}")


def _index(path: Path) -> Tables:
    """Return the index of a shard.

    `fields` are the names of the fields; `offsets` and `sizes`, (samples, fields), say where each is; a size
    of -1 says that the sample lacks it. `cls` are the classes, (samples,), if all have one.
    """
    fields: dict[str, int] = {}
    samples: list[dict[int, Member]] = []
    last = None
    for member in members(path):
        found = _NAME.fullmatch(member.name)
        if found is None or found[1].rpartition("/")[2].startswith("__"):  # what webdataset skips, too
            continue
        name, field = found[1], found[2].lower()
        column = fields.setdefault(field, len(fields))
        if name != last or column in samples[-1]:
            samples.append({})
        last = name
        samples[-1][column] = member
    if not samples:
        raise DataError(f"{path} holds no sample: files such as 0001.png and 0001.cls")
    offsets = np.zeros((len(samples), len(fields)), np.int64)
    sizes = np.full((len(samples), len(fields)), -1, np.int64)
    for row, sample in enumerate(samples):
        for column, member in sample.items():
            offsets[row, column], sizes[row, column] = member.offset, member.size
    index = {"fields": np.array(list(fields)), "offsets": offsets, "sizes": sizes}
    classes = _classes(path, samples, fields.get(_CLASS))
    return index if classes is None else {**index, _CLASS: classes}


def _classes(path: Path, samples: Sequence[Mapping[int, Member]], column: int | None) -> Array | None:
    if column is None or any(column not in sample for sample in samples):
        return None
    with open(path, "rb") as file:
        texts = []
        for sample in samples:
            file.seek(sample[column].offset)
            texts.append(file.read(sample[column].size))
    try:
        return np.array([int(text) for text in texts], np.int64)
    except OverflowError:
        row = next(row for row, text in enumerate(texts) if not -(2**63) <= int(text) < 2**63)
        raise DataError(
            f"{path}: the class of sample {row} is {texts[row][:40].decode()}, which does "
            "not fit into 64 bits"
        ) from None
    except ValueError:
        return None


INDEXER = Indexer("tar-1", _index)
