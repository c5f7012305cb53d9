"""Read rows, predict, and check an artifact against its certificate, with NumPy alone.

An export puts this module, and those of ours that it imports, into the format's runtime, as one file beside
the artifact: so these import nothing else of Trainwright, and define different names.
"""

import base64
import csv
import hashlib
import io
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.tables.encodings import find_delimiter, guess
from trainwright.datasets.tables.times import read_format, read_period, read_time
from trainwright.datasets.tables.written import BOOLEANS, is_missing_word, read_number, without_unit
from trainwright.exporters.certificates.raw import raw_array

Arrays = Mapping[str, Any]  # (rows, ...) by name
Model = Callable[[Arrays], Arrays]

_EPOCH = datetime(1970, 1, 1)
_NAT = -(2**63)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_FORMAT = 1  # of certificates
_HEAD = 1 << 20  # characters of a file of rows that its delimiter is found in
TOKENIZER = "tokenizer.json"
BESIDE = (TOKENIZER,)  # endings of files that belong to an artifact that is a file


def main(arguments: Sequence[str], open_artifact: Callable[[Path], Model]) -> None:
    """Run a command: `predict ROWS.csv` or `verify [ROWS.csv]`."""
    own = Path(__file__).absolute()
    artifact = own.parent if own.name == "reader.py" else own.with_name(own.name.removesuffix(".reader.py"))
    if arguments[:1] == ["--artifact"]:
        artifact, arguments = Path(arguments[1]), arguments[2:]
    match list(arguments):
        case ["measure", given, made]:
            began = time.perf_counter()
            model = open_artifact(artifact)
            measure(model, given, made, time.perf_counter() - began)
        case ["verify", *rows] if len(rows) <= 1:
            verify(artifact, open_artifact, *rows)
        case ["predict", rows]:
            predict(open_artifact(artifact), read_certificate(artifact), rows)
        case _:
            sys.exit(f"usage: python {own.name} predict ROWS.csv | verify [ROWS.csv]")


def read_certificate(artifact: Path) -> dict[str, Any]:
    """Return the certificate of an artifact; exit where there is none that this reader understands."""
    beside = artifact.with_name(f"{artifact.name}.certificate.json")
    path = artifact / "certificate.json" if artifact.is_dir() else beside
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = found["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is no certificate: {type(error).__name__}: {error}")
    if version != _FORMAT:
        sys.exit(f"{path} has format {version}, and this reader reads {_FORMAT}: use that of the artifact")
    return {**found, "path": str(artifact)}


def beside(artifact: Path, name: str) -> Path:
    """Return the path of a file that belongs to an artifact: in its folder, or beside it."""
    return artifact / name if artifact.is_dir() else artifact.with_name(f"{artifact.name}.{name}")


def predict(model: Model, certificate: Mapping[str, Any], path: str) -> None:
    """Write the predictions for the rows of a CSV file to the standard output, as CSV."""
    feeds, _ = read_rows(certificate, path)
    columns = columns_of(certificate, model(feeds))
    writer = csv.writer(sys.stdout)
    try:
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def columns_of(certificate: Mapping[str, Any], outputs: Arrays) -> dict[str, list[Any]]:
    """Return the outputs as the columns of a table."""
    columns: dict[str, list[Any]] = {}
    for one in certificate["outputs"]:
        values, names = np.asarray(outputs[one["name"]]), one["columns"]
        if values.ndim > 2 or (values.ndim == 2 and values.shape[1] > len(names)):  # of pixels, or tokens
            columns[names[0]] = [json.dumps(value.tolist()) for value in values]
            continue
        values = values.reshape(len(values), -1)
        columns.update({name: values[:, i].tolist() for i, name in enumerate(names)})
    return columns


def verify(artifact: Path, open_artifact: Callable[[Path], Model], path: str | None = None) -> None:
    """Compare files and outputs with the certificate; exit with code 3 and the differences if there are any.

    A file that is not the certified one is not opened.
    """
    certificate = read_certificate(artifact)
    name, tolerance = artifact.name, certificate["tolerance"]
    if not 0 <= tolerance <= 1:
        sys.exit(f"the certificate of {name} is damaged: a tolerance of {tolerance}")
    problems = [*changed_files(artifact, certificate)]
    said = ""
    if not problems:
        feeds, wanted, labels = edge_rows(artifact, certificate)
        model = open_artifact(artifact)
        found = model(feeds)
        if missing := found.keys() - wanted.keys():
            problems.append(f"the certificate says nothing of the outputs {', '.join(sorted(missing))}")
        problems += differing(found, wanted, labels, tolerance)
        problems += misnamed(certificate, found)
        said = f"{len(labels)} edge rows"
        if path is not None:
            count, others = verify_rows(model, certificate, path)
            if not count:
                sys.exit(f"{path}: it has none of the rows that the certificate knows, to compare")
            problems += others
            said += f" and {count} rows of {path} that it knows"
    if problems:
        more = f"\n  ... and {len(problems) - 5} more" if len(problems) > 5 else ""
        sys.stderr.write("\n  ".join([f"{name} is not as certified:", *problems[:5]]) + more + "\n")
        sys.exit(3)
    sys.stdout.write(f"{name} is as certified: {said} are equal within {tolerance:g}\n")


def misnamed(certificate: Mapping[str, Any], outputs: Arrays) -> Iterator[str]:
    """Yield a line if the columns of probabilities are not those of the labels that are predicted."""
    outputs_by_name = {one["name"]: one for one in certificate["outputs"]}
    columns: Sequence[str] = outputs_by_name.get("probabilities", {}).get("columns", [])
    labels = np.asarray(outputs.get("label", ()))
    if labels.ndim != 1 or not len(labels):
        return
    probabilities = np.asarray(outputs["probabilities"])
    named = {name: i for i, name in enumerate(columns)}
    places = [named.get(f"probability_{label}", -1) for label in labels]
    of_labels = probabilities[np.arange(len(labels)), places]
    if (
        len(columns) != probabilities.shape[1]
        or -1 in places
        or (of_labels < probabilities.max(axis=1)).any()
    ):
        yield f"the columns {', '.join(columns)} are not those of the labels"


def edge_rows(artifact: Path, certificate: Mapping[str, Any]) -> tuple[Arrays, Arrays, Sequence[str]]:
    """Return the inputs and outputs of the edge rows, and their names; exit where they make no sense."""
    try:
        kept = certificate["edge_rows"]
        feeds = {one["name"]: decoded(kept["inputs"][one["name"]]) for one in certificate["inputs"]}
        wanted = {one["name"]: decoded(kept["outputs"][one["name"]]) for one in certificate["outputs"]}
        labels = [str(one) for one in kept["rows"]]
        counts = {len(labels), *(len(value) for value in (*feeds.values(), *wanted.values()))}
    except (KeyError, ValueError, TypeError) as error:
        sys.exit(f"the certificate of {artifact} is damaged: {type(error).__name__}: {error}")
    if not (labels and feeds and wanted) or len(counts) > 1:
        sys.exit(f"the certificate of {artifact} is damaged: its edge rows are not complete")
    return feeds, wanted, labels


def verify_rows(model: Model, certificate: Mapping[str, Any], path: str) -> tuple[int, list[str]]:
    """Return how many rows of a file the certificate knows, and what differs on them."""
    known = {key: i for i, key in enumerate(certificate["test_rows"]["keys"])}
    feeds, lines = read_rows(certificate, path)
    keys = row_keys(certificate["inputs"], feeds)
    chosen = [i for i, key in enumerate(keys) if key in known]
    if not chosen:
        return 0, []
    places = [known[keys[i]] for i in chosen]
    kept = certificate["test_rows"]["outputs"]
    wanted = {name: decoded(value)[places] for name, value in kept.items()}
    some = {name: value[chosen] for name, value in feeds.items()}
    labels = [f"line {lines[i]} of {path}" for i in chosen]
    return len(chosen), differing(model(some), wanted, labels, certificate["tolerance"])


def changed_files(artifact: Path, certificate: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each file of the artifact that is not the one that was certified.

    Files outside of its folder are not looked at, whatever the certificate names.
    """
    known = certificate["files"]
    if not artifact.is_dir():
        # The artifact may have another name than when it was certified, and so have files beside it.
        own = {name.removeprefix(certificate["artifact"]): record for name, record in known.items()}
        if not {""} <= own.keys() <= {"", *(f".{ending}" for ending in BESIDE)}:
            yield f"{artifact.name}: the certificate is of other files: {', '.join(known) or 'none'}"
            return
        for ending, record in own.items():
            yield from _changed(artifact.name + ending, artifact.with_name(artifact.name + ending), record)
        return
    whole = artifact.resolve()
    for name, record in known.items():
        path = artifact / name
        if not path.resolve().is_relative_to(whole):
            yield f"{name}: it is outside of the folder, or a link to outside"
        else:
            yield from _changed(name, path, record)
    for path in sorted(artifact.rglob("*")):
        name = path.relative_to(artifact).as_posix()
        if name not in known and name != "certificate.json" and (path.is_symlink() or not path.is_dir()):
            yield f"{name}: the certificate knows no such file"


def _changed(name: str, path: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if a file is not the one that was certified; one of another size is not read."""
    digest = hashlib.sha256()
    try:
        if not path.is_file():
            yield f"{name}: there is no such file"
            return
        if path.stat().st_size == record["bytes"]:
            with open(path, "rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
    except OSError as error:
        yield f"{name}: {error.strerror}"
        return
    if digest.hexdigest() != record["sha256"]:
        yield f"{name}: its SHA-256 is not the certified one"


def differing(outputs: Arrays, wanted: Arrays, labels: Sequence[str], tolerance: float) -> list[str]:
    """Return a line for each row whose outputs differ by more than the tolerance."""
    lines = []
    for name, expected in wanted.items():
        given = np.asarray(outputs[name])
        if given.shape != expected.shape:
            return [f"{name}: of shape {given.shape} instead of {expected.shape}"]
        same = equal(given, expected, tolerance)
        if (
            name in ("label", "mask") and "probabilities" in wanted
        ):  # of equally probable classes, either may be named
            same = same | ties(wanted["probabilities"], expected.ndim if name == "label" else 1, tolerance)
        bad = ~same.reshape(len(expected), -1).all(axis=1)
        for i in np.flatnonzero(bad).tolist():
            lines.append(f"{labels[i]}: {name} {_plain(given[i])} instead of {_plain(expected[i])}")
    return lines


def ties(probabilities: Any, axis: int, tolerance: float) -> Any:
    """Return for each answer whether its two most probable classes may change places.

    Each probability may differ by the tolerance.
    """
    ordered = np.moveaxis(np.sort(probabilities, axis=axis), axis, -1)
    return np.asarray(ordered[..., -1] - ordered[..., -2] <= 2 * tolerance)


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def equal(given: Any, expected: Any, tolerance: float) -> Any:
    """Return which values are equal up to the tolerance, beside their size where that is above 1."""
    if expected.dtype.kind not in "fc":
        return given.astype(str) == expected.astype(str)
    given, expected = given.astype(np.float64), expected.astype(np.float64)
    near = np.abs(given - expected) <= tolerance * np.maximum(1.0, np.abs(expected))
    return near | (given == expected) | (np.isnan(given) & np.isnan(expected))


def file_text(path: str) -> str:
    """Return the text of a file in UTF-8, UTF-16 with its mark, or else in cp1252; exit where it is none."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
    try:
        found = guess(content)
        return content.decode("utf-8-sig" if found is None else found.encoding)
    except UnicodeDecodeError as error:
        sys.exit(f"{path}: {error}")


def read_rows(certificate: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[int]]:
    """Return the rows of a file as inputs, and the line of each.

    The file is a CSV file with raw columns (numbers, categories, times, texts, paths of images), an image, or
    an .npz file with the inputs themselves.
    """
    inputs = certificate["inputs"]
    if path.endswith(".npz"):
        return _given_arrays(inputs, path)
    if not path.lower().endswith(".csv") and [one["reads"].get("raw") for one in inputs] == ["image"]:
        cells, lines = {inputs[0]["reads"]["column"]: [Path(path).name]}, [1]
    else:
        cells, lines = _cells(inputs, path)
    tokenizer = beside(Path(certificate["path"]), TOKENIZER) if "path" in certificate else None
    content = tokenizer.read_text(encoding="utf-8") if tokenizer and tokenizer.is_file() else None
    feeds = {}
    for one in inputs:
        name = one["reads"].get("column", one["name"])
        try:
            if "raw" in one["reads"]:
                feeds[one["name"]] = raw_array(one, cells[name], content, Path(path).parent)
            else:
                feeds[one["name"]] = column(one, cells[name])
        except (OSError, ValueError) as error:
            sys.exit(f"{path}: column {name!r}: {error}")
    return feeds, lines


def _cells(inputs: Sequence[Mapping[str, Any]], path: str) -> tuple[dict[str, list[str]], list[int]]:
    """Return the cells of the columns that inputs are made of, and the line of each row.

    The delimiter is found.
    """
    if arrays := [one["name"] for one in inputs if one["reads"].get("raw") == "array"]:
        sys.exit(f"{path}: the model takes arrays: give an .npz file with {', '.join(arrays)}")
    text = file_text(path)
    wanted = list(dict.fromkeys(one["reads"].get("column", one["name"]) for one in inputs))
    delimiter = find_delimiter(text[:_HEAD].encode()) or ","
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    cells: dict[str, list[str]] = {name: [] for name in wanted}
    lines: list[int] = []
    try:
        head = next((row for row in rows if row), [])
        if absent := [name for name in wanted if name not in head]:
            sys.exit(f"{path} has no column {absent[0]!r}; its columns: {', '.join(head)}")
        for row in rows:
            if not row:  # an empty line
                continue
            if len(row) != len(head):
                sys.exit(f"{path}: line {rows.line_num} has {len(row)} cells, and the header {len(head)}")
            lines.append(rows.line_num)
            for name in wanted:
                cells[name].append(row[head.index(name)])
    except csv.Error as error:
        sys.exit(f"{path}: line {rows.line_num}: {error}")
    if not lines:
        sys.exit(f"{path}: there are columns, but no rows")
    return cells, lines


def _given_arrays(inputs: Sequence[Mapping[str, Any]], path: str) -> tuple[dict[str, Any], list[int]]:
    """Return the arrays in a file, in the dtypes of the inputs, and the number of each row."""
    feeds = {}
    with np.load(path, allow_pickle=False) as file:
        for one in inputs:
            if one["name"] not in file.files:
                sys.exit(f"{path} has no array {one['name']!r}")
            array = file[one["name"]]
            if list(array.shape[1:]) != list(one["shape"]):
                sys.exit(f"{path}: {one['name']} is of shape (rows, *{array.shape[1:]}), not {one['shape']}")
            feeds[one["name"]] = array.astype(object if one["dtype"] == "string" else one["dtype"])
    return feeds, list(range(1, len(next(iter(feeds.values()))) + 1))


def column(about: Mapping[str, Any], cells: Sequence[str]) -> Any:
    """Return the cells of a column as an input, (rows, 1).

    Raises:
        ValueError: A cell holds something else.
    """
    reads = about["reads"]
    absent = {str(one) for one in reads.get("missing", ())}
    if about["dtype"] == "string":
        return np.array([["" if cell in absent else cell] for cell in cells], dtype=object)
    is_time = about["dtype"] == "int64"
    empty = _NAT if is_time else math.nan
    read = moment if is_time else number
    values = []
    for cell in cells:
        value = empty if cell in absent else read(cell, reads)
        if value is None and not is_missing_word(cell):
            raise ValueError(f"{cell!r} is no {'time' if is_time else 'number'}")
        values.append(empty if value is None else value)
    return np.array(values, dtype=about["dtype"])[:, None]


def number(cell: str, reads: Mapping[str, Any]) -> float | None:
    """Return a number in text, or None; yes and no are 1 and 0."""
    if (word := BOOLEANS.get(cell.strip().casefold())) is not None:
        return float(word)
    bare = without_unit(cell, reads["unit"]) if reads.get("unit") else cell
    found = read_number(bare, reads.get("decimal", "."))
    return None if found is None else found.value


def moment(cell: str, reads: Mapping[str, Any]) -> int | None:
    """Return a time in text as microseconds since 1970, or None."""
    if reads.get("unit"):
        since = read_number(cell)
        return None if since is None else round(since.value * _MICROSECONDS[reads["unit"]])
    if reads.get("format"):
        found = read_format(cell, reads["format"])
    else:
        found = read_time(cell, reads.get("order", "day first")) or read_period(cell)
    return None if found is None else (found - _EPOCH) // timedelta(microseconds=1)


def row_keys(inputs: Sequence[Mapping[str, Any]], feeds: Arrays) -> list[str]:
    """Return a key for each row: half of the SHA-256 of its values."""
    names = [one["name"] for one in inputs]
    values = [np.asarray(feeds[name]).reshape(len(feeds[name]), -1).tolist() for name in names]
    rows = zip(*values, strict=True)
    return [hashlib.sha256(json.dumps(row).encode()).hexdigest()[:32] for row in rows]


def encoded(array: Any) -> dict[str, Any]:
    """Return an array as JSON holds it."""
    array = np.asarray(array)
    if array.dtype.kind in "OU":
        return {"texts": array.astype(str).ravel().tolist(), "shape": list(array.shape)}
    content = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "base64": content}


def decoded(value: Mapping[str, Any]) -> Any:
    """Return the array that `encoded` was called with."""
    if "texts" in value:
        return np.array(value["texts"], dtype=object).reshape(value["shape"])
    content = base64.b64decode(value["base64"])
    return np.frombuffer(content, dtype=value["dtype"]).reshape(value["shape"])


def measure(model: Model, given: str, made: str, opened: float) -> None:
    """Predict the inputs in a file in batches of several sizes, and write outputs and times into another.

    Args:
        model: The model.
        given: The inputs as `SAMPLE:INPUT`, with the sizes of batches as `/sizes`, and those to be timed as
            `/times`; the outputs of the first `SAMPLE/rows` are wanted, those of batches of one row of 64 at
            most.
        made: The file to write: `SAMPLE/SIZE/OUTPUT` arrays, and seconds as `/latency/SIZE`, of the last
            sample, and `/open`.
        opened: The seconds that it took to open the artifact.
    """
    samples: dict[str, dict[str, Any]] = {}
    with np.load(given) as file:
        sizes, times = file["/sizes"].tolist(), file["/times"].tolist()
        counts = {name.removesuffix("/rows"): int(file[name]) for name in file.files if "/rows" in name}
        for key in file.files:
            sample, _, name = key.partition(":")
            if name:
                value = file[key]
                samples.setdefault(sample, {})[name] = (
                    value.astype(object) if value.dtype.kind == "U" else value
                )
    found: dict[str, Any] = {"/open": np.float64(opened)}
    for sample, feeds in samples.items():
        for size in sizes:
            for name, whole in in_batches(model, feeds, size, counts[sample]).items():
                key = f"{sample}/{size}/{name}"
                found[key] = whole.astype(str) if whole.dtype.kind == "O" else whole
    feeds = list(samples.values())[-1]
    rows = len(next(iter(feeds.values())))
    for size in times:
        some = {name: value[np.resize(np.arange(rows), size)] for name, value in feeds.items()}
        found[f"/latency/{size}"] = np.float64(latency(model, some))
    with open(made, "wb") as target:
        np.savez(target, allow_pickle=False, **found)


def in_batches(model: Model, feeds: Arrays, size: int, rows: int) -> dict[str, Any]:
    """Return the outputs of the first rows, predicted so many at a time; of single rows, 64 at most."""
    last = min(rows, 64) if size == 1 else rows
    parts = [
        model({name: value[start : start + size] for name, value in feeds.items()})
        for start in range(0, last, size)
    ]
    return {name: np.concatenate([np.asarray(part[name]) for part in parts])[:last] for name in parts[0]}


def latency(model: Callable[[Any], Any], feeds: Any, seconds: float = 0.2) -> float:
    """Return the median time of a call, in seconds."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 5 or (time.perf_counter() < end and len(taken) < 1000):
        began = time.perf_counter()
        model(feeds)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
