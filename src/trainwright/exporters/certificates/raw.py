"""Make the arrays that a model takes of images and texts, with NumPy; Pillow and `tokenizers`, if needed.

An export puts this module into the reader of an artifact, so it imports nothing of Trainwright. How an input
is made is its `reads` in the certificate.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Reads = Mapping[str, Any]
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_IMAGE_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")
_PLANES = {3: "RGB", 4: "RGBA"}  # numbers of channels that Pillow resizes at once


def raw_array(
    about: Mapping[str, Any], cells: Sequence[Any], content: str | None, folder: Path = Path()
) -> Any:
    """Return an input of images or texts, (rows, ...).

    Args:
        about: The input, with how it is made as `reads`.
        cells: Paths of images or arrays; or texts or lists of words.
        content: That of the `tokenizer.json`.
        folder: The folder that paths are relative to.

    Raises:
        ValueError: A cell cannot be used, or a package is not installed.
    """
    reads = about["reads"]
    if reads["raw"] == "image":
        return images(cells, reads, folder)
    return tokens(cells, reads, opened_tokenizer(reads, content))


def images(cells: Sequence[Any], reads: Reads, folder: Path) -> Any:
    """Return images in the size that a model takes, (rows, height, width, channels) uint8.

    Args:
        cells: Paths, relative to the folder, or arrays (height, width, channels) uint8.
        reads: Its `mode`, Pillow's name of the colors, and `steps`: changes of size, in their order.
        folder: The folder that paths are relative to.

    Raises:
        ValueError: An image cannot be read, or the images have several sizes.
    """
    made = []
    for cell in cells:
        pixels = cell if isinstance(cell, np.ndarray) else _decoded(folder / cell, reads["mode"])
        for step in reads["steps"]:
            pixels = _cropped(pixels, *step["crop"]) if "crop" in step else _resized(pixels, step)
        made.append(pixels)
    if len({one.shape for one in made}) > 1:
        raise ValueError("the images have several sizes")
    return np.stack(made)


def _decoded(path: Path, mode: str) -> Any:
    """Return the pixels of a file, (height, width, channels) uint8; of 16 bits the upper 8 count."""
    try:
        import PIL.Image
    except ImportError:
        raise ValueError("files of images need Pillow: pip install pillow; or give arrays (.npz)") from None
    with PIL.Image.open(io.BytesIO(path.read_bytes()), formats=_IMAGE_FORMATS) as opened:
        image: Any = opened
        if image.mode.startswith("I;16"):
            image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise ValueError(f"{path} has pixels of 32 bits, and nothing says which value is white")
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels.reshape(*pixels.shape[:2], _CHANNELS[mode])


def _resized(pixels: Any, step: Reads) -> Any:
    """Return an image in another size: (height, width), or that of its shorter side."""
    size, (height, width) = step["resize"], pixels.shape[:2]
    if isinstance(size, int):
        wide, high = int(size * width / height), int(size * height / width)
        size = (size, wide) if height <= width else (high, size)
    if tuple(size) == (height, width):
        return pixels
    import PIL.Image

    how = getattr(PIL.Image.Resampling, step["interpolation"].upper())

    def change(part: Any) -> Any:
        return np.asarray(PIL.Image.fromarray(np.ascontiguousarray(part)).resize((size[1], size[0]), how))

    if pixels.shape[2] in _PLANES:
        return change(pixels)
    return np.stack([change(pixels[:, :, i]) for i in range(pixels.shape[2])], axis=2)


def _cropped(pixels: Any, height: int, width: int) -> Any:
    """Return the middle of an image; a smaller one gets a black border."""
    rows, columns = max(0, height - pixels.shape[0]), max(0, width - pixels.shape[1])
    border = ((rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0))
    pixels = np.pad(pixels, border)
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def opened_tokenizer(reads: Reads, content: str | None) -> Any:
    """Return a tokenizer of the library `tokenizers`; None where the bytes of texts are the tokens.

    Args:
        reads: How an input is made.
        content: The content of its `tokenizer.json`.

    Raises:
        ValueError: The library is not installed.
    """
    if content is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError(
            f"texts need the package tokenizers: pip install tokenizers; or give {reads['part']} (.npz)"
        ) from None
    tokenizer = Tokenizer.from_str(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokens(cells: Sequence[Any], reads: Reads, tokenizer: Any) -> Any:
    """Return the tokens of texts, or which of them are no padding: (rows, max_length) int64.

    Args:
        cells: Texts, or lists of words (also as JSON) where `reads` says so.
        reads: `part` (input_ids or attention_mask), `max_length`, `padding` and `of_words`.
        tokenizer: What `opened_tokenizer` returned.
    """
    length = reads["max_length"]
    if reads["of_words"]:
        cells = [json.loads(cell) if isinstance(cell, str) else list(cell) for cell in cells]
    if tokenizer is None:
        texts = [" ".join(cell) if reads["of_words"] else cell for cell in cells]
        found = [list(text.encode()[:length]) for text in texts]
    else:
        added = tokenizer.num_special_tokens_to_add(False)
        encodings = tokenizer.encode_batch(
            list(cells), is_pretokenized=reads["of_words"], add_special_tokens=False
        )
        for one in encodings:
            one.truncate(length - added)
        found = [tokenizer.post_process(one).ids for one in encodings]
    is_mask = reads["part"] == "attention_mask"
    made = np.full((len(found), length), 0 if is_mask else reads["padding"], np.int64)
    if is_mask:
        made[:, 0] = 1  # also of an empty text
    for row, ids in enumerate(found):
        made[row, : len(ids)] = 1 if is_mask else ids
    return made
