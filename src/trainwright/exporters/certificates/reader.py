"""Read rows, predict, and check an artifact against its certificate, with NumPy alone.

An export puts this module, and those of ours that it imports, into the format's runtime, as one file beside
the artifact: so these import nothing else of Trainwright, and define different names.
"""

import base64
import csv
import hashlib
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

from trainwright.datasets.tables.times import read_format, read_period, read_time
from trainwright.datasets.tables.written import BOOLEANS, is_missing_word, read_number, without_unit

Arrays = Mapping[str, Any]  # (rows, ...) by name
Model = Callable[[Arrays], Arrays]

_EPOCH = datetime(1970, 1, 1)
_NAT = -(2**63)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


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
    """Return the certificate of an artifact."""
    beside = artifact.with_name(f"{artifact.name}.certificate.json")
    path = artifact / "certificate.json" if artifact.is_dir() else beside
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


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
        values = np.asarray(outputs[one["name"]])
        values = values.reshape(len(values), -1)
        names = one["columns"]
        columns.update({name: values[:, i].tolist() for i, name in enumerate(names)})
    return columns


def verify(artifact: Path, open_artifact: Callable[[Path], Model], path: str | None = None) -> None:
    """Compare files and outputs with the certificate; exit with code 3 and the differences if there are any.

    A file that is not the certified one is not opened.
    """
    certificate = read_certificate(artifact)
    name, tolerance, kept = certificate["artifact"], certificate["tolerance"], certificate["edge_rows"]
    problems = [*changed_files(artifact, certificate)]
    said = f"{len(kept['rows'])} edge rows"
    if not problems:
        model = open_artifact(artifact)
        feeds = {one["name"]: decoded(kept["inputs"][one["name"]]) for one in certificate["inputs"]}
        wanted = {output: decoded(value) for output, value in kept["outputs"].items()}
        problems += differing(model(feeds), wanted, kept["rows"], tolerance)
        if path is not None:
            count, others = verify_rows(model, certificate, path)
            problems += others if count else [f"{path}: it has none of the rows that the certificate knows"]
            said += f" and {count} rows of {path} that it knows"
    if problems:
        more = f"\n  ... and {len(problems) - 5} more" if len(problems) > 5 else ""
        sys.stderr.write("\n  ".join([f"{name} is not as certified:", *problems[:5]]) + more + "\n")
        sys.exit(3)
    sys.stdout.write(f"{name} is as certified: {said} are equal within {tolerance:g}\n")


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
    """Yield a line for each file of the artifact that is not the one that was certified."""
    for name, record in certificate["files"].items():
        path = artifact / name if artifact.is_dir() else artifact
        digest, size = hashlib.sha256(), 0
        try:
            with open(path, "rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
                    size += len(chunk)
        except OSError as error:
            yield f"{name}: {error.strerror}"
            continue
        if size != record["bytes"] or digest.hexdigest() != record["sha256"]:
            yield f"{name}: its SHA-256 is not the certified one"


def differing(outputs: Arrays, wanted: Arrays, labels: Sequence[str], tolerance: float) -> list[str]:
    """Return a line for each row whose outputs differ by more than the tolerance."""
    lines = []
    for name, expected in wanted.items():
        given = np.asarray(outputs[name])
        if given.shape != expected.shape:
            return [f"{name}: of shape {given.shape} instead of {expected.shape}"]
        bad = ~equal(given, expected, tolerance).reshape(len(expected), -1).all(axis=1)
        for i in np.flatnonzero(bad).tolist():
            lines.append(f"{labels[i]}: {name} {_plain(given[i])} instead of {_plain(expected[i])}")
    return lines


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def equal(given: Any, expected: Any, tolerance: float) -> Any:
    """Return which values are equal up to the tolerance, beside their size where that is above 1."""
    if expected.dtype.kind not in "fc":
        return given.astype(str) == expected.astype(str)
    given, expected = given.astype(np.float64), expected.astype(np.float64)
    near = np.abs(given - expected) <= tolerance * np.maximum(1.0, np.abs(expected))
    return near | (given == expected) | (np.isnan(given) & np.isnan(expected))


def read_rows(certificate: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[int]]:
    """Return the rows of a CSV file as inputs, and the line of each."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        cells: dict[str, list[str]] = {one["name"]: [] for one in certificate["inputs"]}
        lines: list[int] = []
        for row in reader:
            lines.append(reader.line_num)
            for name, values in cells.items():
                if row.get(name) is None:
                    sys.exit(f"{path}: line {reader.line_num} has no column {name!r}")
                values.append(row[name])
    feeds = {}
    for one in certificate["inputs"]:
        try:
            feeds[one["name"]] = column(one, cells[one["name"]])
        except ValueError as error:
            sys.exit(f"{path}: column {one['name']!r}: {error}")
    return feeds, lines


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
        given: The inputs, with the sizes of batches as `/sizes`, and those to be timed as `/times`.
        made: The file to write: `SIZE/OUTPUT` arrays, and seconds as `/latency/SIZE` and `/open`.
        opened: The seconds that it took to open the artifact.
    """
    with np.load(given) as file:
        sizes, times = file["/sizes"].tolist(), file["/times"].tolist()
        feeds = {name[1:]: file[name] for name in file.files if name.startswith(":")}
    feeds = {
        name: value.astype(object) if value.dtype.kind == "U" else value for name, value in feeds.items()
    }
    rows = len(next(iter(feeds.values())))
    found: dict[str, Any] = {"/open": np.float64(opened)}
    for size in sizes:
        last = min(rows, 64) if size == 1 else rows
        parts = [
            model({name: value[start : min(start + size, last)] for name, value in feeds.items()})
            for start in range(0, last, size)
        ]
        for name in parts[0]:
            whole = np.concatenate([np.asarray(part[name]) for part in parts])
            found[f"{size}/{name}"] = whole.astype(str) if whole.dtype.kind == "O" else whole
    for size in times:
        some = {name: value[np.resize(np.arange(rows), size)] for name, value in feeds.items()}
        found[f"/latency/{size}"] = np.float64(latency(model, some))
    with open(made, "wb") as target:
        np.savez(target, allow_pickle=False, **found)


def latency(model: Model, feeds: Arrays, seconds: float = 0.2) -> float:
    """Return the median time of a call, in seconds."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 5 or (time.perf_counter() < end and len(taken) < 1000):
        began = time.perf_counter()
        model(feeds)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
