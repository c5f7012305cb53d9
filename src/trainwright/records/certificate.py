"""The certificate of an artifact: which run it came from, and how far its predictions differ."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from trainwright.records.document import Record


class Certificate(Record):
    """The record beside an artifact, which its reader verifies without Trainwright.

    Attributes:
        format_version: Of this record.
        artifact: The name of the file or folder.
        format: The name of the exporter.
        made: When, as ISO text in UTC.
        run: Its id and experiment, the digest of its weights, the SHA-256 of its config, model and target.
        versions: Of packages, by name.
        options: Of the exporter, by name.
        needs: What a machine must have to open the artifact; see `Exporter.needs`.
        licence: What the user said of the terms of use.
        inputs: Name, dtype, shape of a row, content, and how cells of text are read.
        outputs: Name, dtype, shape of a row, and the columns of a table of predictions.
        files: Bytes and SHA-256 of each file, by its name.
        tolerance: The largest difference that is allowed, beside a value's size where that is above 1.
        compared: Rows, the largest and mean difference (relative to values above 1), the share of equal
            labels (of the test rows, if there are any), and the sizes of batches.
        latency_seconds: The median time of a call, by the number of rows.
        data: The description of the data, as a run keeps it: how rows are read, and what outputs mean.
        config: The config of the run without trackers and secrets, for its metrics and the options of files.
        edge_rows: Synthetic rows: their names, inputs and outputs.
        test_rows: Keys of real rows, and the outputs for them; the rows themselves are not kept.
    """

    format_version: int = 1
    artifact: str
    format: str
    made: str
    run: dict[str, Any]
    versions: dict[str, str]
    options: dict[str, str] = Field(default_factory=dict)
    needs: dict[str, str] = Field(default_factory=dict)
    licence: str | None = None
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    files: dict[str, dict[str, Any]]
    tolerance: float = Field(ge=0, le=1)
    compared: dict[str, Any]
    latency_seconds: dict[str, float]
    data: dict[str, Any] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)
    edge_rows: dict[str, Any]
    test_rows: dict[str, Any]
