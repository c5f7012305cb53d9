"""Read files of records in TensorFlow's framing, without TensorFlow.

A record is its length (8 bytes, little-endian), the length's checksum (4 bytes), its bytes, and their
checksum (4 bytes). The checksum is CRC-32C, rotated and shifted ("masked"):
https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from trainwright.datasets.samples.files import read_bytes
from trainwright.errors import DataError
from trainwright.types import Array, Ids

_HEADER, _FOOTER = 12, 4  # bytes before and after those of a record
_LANE = 256  # bytes of a lane; the checksums of many lanes are computed in parallel, as a Python loop is slow
_BLOCK_LANES = 1 << 16
_POLYNOMIAL = 0x82F63B78  # of Castagnoli, bits reversed


def read_records(path: str) -> list[memoryview]:
    """Return the records of a file, which may be compressed by gzip, after verifying their checksums.

    Raises:
        DataError: The file is truncated, damaged, or of another format; names the record.
    """
    data = read_bytes(path)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} is compressed, but cannot be unpacked (is it complete?): {error}"
            ) from error
    starts = np.array(_starts(data, path), dtype=np.int64)
    if not len(starts):
        raise DataError(f"{path} holds no records")
    lengths = _lengths(starts, len(data))
    _verify(np.frombuffer(data, dtype=np.uint8), starts, lengths, path)
    view = memoryview(data)
    return [
        view[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def index_of(path: Path) -> tuple[Ids, Ids, Array]:
    """Return where the records of a file are: their first bytes, sizes, and whether they are damaged.

    Raises:
        DataError: The file is compressed, truncated, or of another format, or the length of a record is
            damaged, so that those after it cannot be found.
    """
    if not path.stat().st_size:
        raise DataError(f"{path} holds no records")
    data = np.memmap(path, np.uint8, "r")
    if data[:2].tobytes() == b"\x1f\x8b":
        raise DataError(f"{path} is compressed, so its records cannot be read one by one; decompress it")
    starts = np.array(_starts(data.data, str(path)), dtype=np.int64)
    lengths = _lengths(starts, len(data))
    _require_same(data, (starts - _HEADER, np.full(len(starts), 8), starts - 4), starts, str(path))
    damaged = np.zeros(len(starts), bool)
    damaged[_mismatches(data, starts, lengths, starts + lengths)] = True
    return starts, lengths, damaged


def _lengths(starts: Ids, size: int) -> Ids:
    """Return the number of bytes of each record of a file."""
    return np.diff(np.append(starts, size + _HEADER)) - _HEADER - _FOOTER


def _starts(data: bytes | memoryview, path: str) -> list[int]:
    """Return the position of each record's first byte."""
    starts: list[int] = []
    position = 0
    while position < len(data):
        start = position + _HEADER
        length = struct.unpack_from("<Q", data, position)[0] if start <= len(data) else 0
        position = start + length + _FOOTER
        if position > len(data):
            if not starts and _masked(_scalar(data[:8])) != int.from_bytes(data[8:12], "little"):
                raise DataError(f"{path} is not a TFRecord file: it does not begin with a record's length")
            raise DataError(
                f"{path} ends within record {len(starts) + 1}, after byte {len(data)}: it is "
                "cut short, or damaged; copy or write it again"
            )
        starts.append(start)
    return starts


def _verify(data: Array, starts: Ids, lengths: Ids, path: str) -> None:
    for begin, size, at in (
        (starts - _HEADER, np.full(len(starts), 8), starts - 4),
        (starts, lengths, starts + lengths),
    ):
        _require_same(data, (begin, size, at), starts, path)


def _require_same(data: Array, checked: tuple[Ids, Ids, Ids], starts: Ids, path: str) -> None:
    """Refuse a file of which a checksum does not match; the arguments are those of `_mismatches`.

    Raises:
        DataError: One does not; names the record.
    """
    wrong = _mismatches(data, *checked)
    if len(wrong):
        record = f"record {wrong[0] + 1} (at byte {starts[wrong[0]]})"
        raise DataError(f"{path}: {record} is damaged: its checksum does not match its content")


def _mismatches(data: Array, begin: Ids, size: Ids, at: Ids) -> Ids:
    """Return the numbers of the records whose checksum, stored at `at`, is not that of what begins there."""
    stored = data[at[:, None] + np.arange(4)].reshape(-1).view("<u4")
    return np.flatnonzero(_masked(crc32c(data, begin, size)) != stored)


def _masked(checksums: Array | int) -> Array:
    """Return checksums as TensorFlow stores them: masked, as a CRC of data that holds its own CRC is weak."""
    sums = np.asarray(checksums).astype(np.uint64)
    rotated = (sums >> np.uint64(15)) | (sums << np.uint64(17))
    masked: Array = ((rotated + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return masked


def crc32c(data: Array, starts: Ids, lengths: Ids) -> Array:
    """Return the CRC-32C, (messages,) uint32, of the messages data[start : start + length].

    A message is cut into lanes of 256 bytes, padded with zeros at its start; these change nothing while the
    register is zero. The register starts with all ones, which equals inverting the first four bytes. The
    lanes of many messages are processed in parallel.
    """
    checksums = np.zeros(len(starts), dtype=np.uint32)
    lanes = -(-lengths // _LANE)
    ends = np.cumsum(lanes)
    first = 0
    while first < len(starts):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + _BLOCK_LANES, side="right")))
        checksums[first:last] = _block(data, starts[first:last], lengths[first:last], lanes[first:last])
        first = last
    for i in np.flatnonzero(lengths < 4):
        checksums[i] = _scalar(data[starts[i] : starts[i] + lengths[i]].tobytes())
    return checksums


def _block(data: Array, starts: Ids, lengths: Ids, lanes: Ids) -> Array:
    matrix = np.zeros((int(lanes.sum()), _LANE), dtype=np.uint8)
    flat, ends = matrix.reshape(-1), np.cumsum(lanes)
    for start, length, end in zip(starts.tolist(), lengths.tolist(), (ends * _LANE).tolist(), strict=True):
        flat[end - length : end] = data[start : start + length]
        flat[end - length : min(end - length + 4, end)] ^= 0xFF
    parts, firsts = _run(matrix), ends - lanes
    register = np.zeros(len(starts), dtype=np.uint32)
    for number in range(int(lanes.max(initial=0))):
        going = np.flatnonzero(lanes > number)
        register[going] = _after_a_lane(register[going]) ^ parts[firsts[going] + number]
    return ~register


@cache
def _table() -> Array:
    """Return the register after two bytes, (65536,) uint32, by its two lower bytes."""
    values = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        values = (values >> np.uint32(1)) ^ (np.uint32(_POLYNOMIAL) * (values & np.uint32(1)))
    return values


def _run(lanes: Array, register: Array | None = None) -> Array:
    """Return the register, (lanes,) uint32, after each row of bytes."""
    state = np.zeros(len(lanes), dtype=np.uint32) if register is None else register
    table = _table()
    for column in np.ascontiguousarray(lanes.view("<u2").T):
        state = table[(state ^ column) & np.uint32(0xFFFF)] ^ (state >> np.uint32(16))
    return state


@cache
def _lane_tables() -> Array:
    """Return the register after a lane of zeros, (4, 256) uint32, by its bytes; it is linear in them."""
    values = (
        np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32)[:, None])
    ).reshape(-1)
    return _run(np.zeros((1024, _LANE), dtype=np.uint8), values).reshape(4, 256)


def _after_a_lane(register: Array) -> Array:
    tables = _lane_tables()
    parts = [tables[i][(register >> np.uint32(8 * i)) & np.uint32(0xFF)] for i in range(4)]
    moved: Array = parts[0] ^ parts[1] ^ parts[2] ^ parts[3]
    return moved


def _scalar(message: bytes | memoryview) -> int:
    register = 0xFFFFFFFF
    for byte in message:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (_POLYNOMIAL * (register & 1))
    return register ^ 0xFFFFFFFF
