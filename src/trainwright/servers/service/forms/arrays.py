"""Arrays, as JSON or files of NumPy."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from trainwright.datasets.tables.table import nearest
from trainwright.inference.predictor import Predictor
from trainwright.servers.service.errors import RequestError, invalid, malformed
from trainwright.servers.service.forms.base import JSON, Form, Rows, decoded
from trainwright.types import Array

_MOST_BYTES = 1 << 28  # of arrays, unpacked


class ArrayForm(Form):
    """Arrays, as the data set of the run provided them.

    Args:
        predictor: The model.
    """

    def __init__(self, predictor: Predictor) -> None:
        names = predictor.model.input_names or list(predictor.info.inputs)
        self.specs = {name: predictor.info.inputs[name] for name in names}

    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""
        return {JSON: self._json, "application/x-npy": self._npy, "application/x-npz": self._npz}

    def _json(self, body: bytes, _: str | None) -> Rows:
        found = decoded(body, _ANYTHING)
        if isinstance(found, dict) and len(found) == 1:
            (name,) = found
            is_wrapped = name in ("inputs", "instances", "rows") and name not in self.specs
            found = found[name] if is_wrapped else found

        return self.rows(found if isinstance(found, dict) else {next(iter(self.specs)): found})

    def _npy(self, body: bytes, _: str | None) -> Rows:
        return self.rows({next(iter(self.specs)): _numpy(body)})

    def _npz(self, body: bytes, _: str | None) -> Rows:
        return self.rows(_numpy(body))

    def rows(self, given: Mapping[str, Any]) -> Rows:
        """Return the rows of arrays, by the names of the model's inputs.

        Raises:
            RequestError: One is missing, or has another shape.
        """
        arrays: dict[str, Array] = {}
        for name, spec in self.specs.items():
            if name not in given:
                raise invalid(f"there is no {name!r}; {nearest(name, given)}", None, name)
            try:
                array = np.asarray(given[name])
                if array.dtype.kind != np.dtype(spec.dtype).kind:
                    cast = array.astype(spec.dtype)
                    if cast.dtype.kind in "biu" and array.dtype.kind == "f" and not (cast == array).all():
                        raise invalid(f"{name}: expected whole numbers ({spec.dtype})", None, name)
                    array = cast
            except (ValueError, TypeError, OverflowError):
                raise invalid(f"{name}: expected numbers, in lists of equal lengths", None, name) from None
            if array.shape == tuple(spec.shape):
                array = array[None]
            if array.shape[1:] != tuple(spec.shape):
                raise invalid(
                    f"{name}: an array of shape {list(array.shape)} given; the model takes rows of shape "
                    f"{list(spec.shape)}",
                    None,
                    name,
                )
            arrays[name] = array
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) > 1:
            raise invalid(f"arrays of different numbers of rows given: {counts}")
        return Rows([arrays], next(iter(counts.values())))

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the arrays of some requests as one."""
        given = [arrays for part in parts for arrays in part]
        arrays = {name: np.concatenate([one[name] for one in given]) for name in self.specs}
        return arrays if len(arrays) > 1 else next(iter(arrays.values()))

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body."""
        arrays = {
            name: {"type": "array", "items": {}, "description": f"rows of {list(spec.shape)}, {spec.dtype}"}
            for name, spec in self.specs.items()
        }
        example = {name: np.zeros((1, *spec.shape)).tolist() for name, spec in self.specs.items()}
        if len(arrays) > 1:
            return {"type": "object", "properties": arrays, "required": [*arrays], "example": example}
        (one,), (value,) = arrays.values(), example.values()
        return {
            "type": "object",
            "properties": {"inputs": one},
            "required": ["inputs"],
            "example": {"inputs": value},
        }


def _numpy(body: bytes) -> Any:
    """Return the array, or the arrays by name, of a file of NumPy; never pickles."""
    try:
        if zipfile.is_zipfile(io.BytesIO(body)):
            members = zipfile.ZipFile(io.BytesIO(body)).infolist()
            if sum(one.file_size for one in members) > _MOST_BYTES:
                raise RequestError(
                    413, "body_too_large", f"the arrays unpack to more than {_MOST_BYTES:,} bytes"
                )
        found = np.load(io.BytesIO(body), allow_pickle=False)
        return dict(found) if hasattr(found, "files") else found
    except RequestError:
        raise
    except Exception as error:  # of zip files there are many
        raise malformed(f"the array cannot be read: {str(error)[:200]}") from None


_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
