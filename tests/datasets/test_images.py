"""Images in folders and tables: what is read, what is refused, and the bits of runs on them."""

import io
import json
import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import trainwright
from small_runs import SMALL, assert_same, whole_and_resumed
from trainwright.config import load
from trainwright.config.schema import DataConfig
from trainwright.datasets.base import Draw
from trainwright.datasets.image_folder import ImageFolderDataset
from trainwright.datasets.image_table import ImageTableDataset
from trainwright.datasets.images.decoders import decoder_of
from trainwright.datasets.images.pixels import decode
from trainwright.datasets.images.preparation import files_of
from trainwright.datasets.samples import file_hashes
from trainwright.errors import ConfigError, DataError, InputError, ModelError
from trainwright.order import SampleOrder
from trainwright.process import file_stamps
from trainwright.runs.catalog import Catalog
from trainwright.runs.wiring import load_data
from trainwright.testing.dataset_suite import DatasetSuite
from trainwright.types import FEATURES, TARGET

SIDE = 6


def pixels(seed: int) -> Any:
    """A picture whose class, seed % 2, is the half that is bright."""
    random = np.random.default_rng(seed)
    image = random.integers(0, 120, (SIDE, SIDE, 3))
    image[: SIDE // 2] += 100 * (seed % 2 == 0)
    image[SIDE // 2 :] += 100 * (seed % 2)
    return image.astype(np.uint8)


def encoded(seed: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(seed)).save(stream, "PNG")
    return stream.getvalue()


def folder(root: Path, count: int = 30, first: int = 0) -> Path:
    for i in range(first, first + count):
        path = root / ("top" if i % 2 == 0 else "bottom") / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(i))
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("pictures") / "data")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))


def bundle_of(**data: Any) -> Any:
    config = load({"data": {"type": "image_folder", **data}, "model": "cnn"}, adapters=Catalog()).config
    return load_data(config)


class TestImageFolder(DatasetSuite):
    """Images of one folder."""

    def make(self, folder_: Path) -> ImageFolderDataset:
        data = DataConfig(type="image_folder", path=str(folder(folder_ / "data", 60)), transforms=[])
        return ImageFolderDataset(data, ImageFolderDataset.Params())

    def raw_rows(self, folder: Path) -> Any:
        return [{"image": str(file)} for file in sorted((folder / "data").rglob("*.png"))]


class TestImageTable(DatasetSuite):
    """Images that a table names."""

    def make(self, folder_: Path) -> ImageTableDataset:
        files = sorted(folder(folder_ / "data", 60).rglob("*.png"))
        rows = [f"{file.relative_to(folder_)},{file.parent.name}" for file in files]
        (folder_ / "table.csv").write_text("\n".join(["image,half", *rows]))
        data = DataConfig(type="image_table", path=str(folder_ / "table.csv"), target="half")
        return ImageTableDataset(data, ImageTableDataset.Params())


def test_a_folder_for_each_class(pictures: Path) -> None:
    bundle = bundle_of(path=str(pictures), split={"val": 0.2, "test": 0})
    assert (bundle.info.classes, bundle.info.input_shape) == (["bottom", "top"], (3, SIDE, SIDE))
    split = bundle.splits["train"]
    batch = split.take(np.arange(len(split)))
    for name, image, target in zip(
        bundle.identifiers["train"].values, batch[FEATURES], batch[TARGET], strict=True
    ):
        number = int(Path(name).stem)
        np.testing.assert_array_equal(
            image.transpose(1, 2, 0), pixels(number).astype(np.float32) / np.float32(255)
        )
        assert target == (number % 2 == 0)
    assert len(split) + len(bundle.splits["val"]) == 30


def test_folders_of_splits(tmp_path: Path) -> None:
    folder(tmp_path / "train", 8)
    folder(tmp_path / "validation", 4, first=8)
    folder(tmp_path / "test" / "deep", 6, first=12)
    (tmp_path / "test" / "deep").rename(tmp_path / "test" / "top_")
    with pytest.raises(DataError, match="top_"):
        bundle_of(path=str(tmp_path))
    (tmp_path / "test" / "top_").rename(tmp_path / "aside")
    (tmp_path / "test").rmdir()
    (tmp_path / "aside").rename(tmp_path / "test")
    bundle = bundle_of(path=str(tmp_path))
    assert {name: len(split) for name, split in bundle.splits.items()} == {"train": 8, "val": 4, "test": 6}
    by_path = bundle_of(train_path=str(tmp_path / "train"), val_path=str(tmp_path / "validation"))
    assert by_path.splits["val"].fingerprint() == bundle.splits["val"].fingerprint()


@pytest.mark.parametrize("mode", ["gray", "rgba"])
def test_images_are_converted_as_pillow_does(pictures: Path, mode: str) -> None:
    batch = bundle_of(path=str(pictures), mode=mode).splits["train"].take(np.array([0]))
    expected = np.asarray(Image.fromarray(pixels(1)).convert({"gray": "L", "rgba": "RGBA"}[mode]))
    np.testing.assert_allclose(batch[FEATURES][0].transpose(1, 2, 0).squeeze() * 255, expected, atol=1e-3)


def test_files_are_hashed_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path, 6)
    first = bundle_of(path=str(root)).splits["train"].fingerprint()
    monkeypatch.setattr(file_stamps, "_SETTLED_NS", -(10**18))
    monkeypatch.setattr(file_stamps, "_is_in_memory", lambda device: False)
    assert bundle_of(path=str(root)).splits["train"].fingerprint() == first
    read: list[Path] = []
    hashed = file_hashes.sha256_file
    monkeypatch.setattr(file_hashes, "sha256_file", lambda path: (read.append(path), hashed(path))[1])
    one = bundle_of(path=str(root)).splits["train"]
    assert (one.fingerprint(), read) == (first, [])
    path = root / "top" / "000.png"
    path.write_bytes(path.read_bytes()[:-1] + b"x")  # of the same size
    assert bundle_of(path=str(root)).splits["train"].fingerprint() != first


def test_only_files_that_are_images_are_taken_and_the_others_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    top = folder(tmp_path, 6) / "top"
    Image.fromarray(pixels(8)).save(top / "8.gif")
    os.mkfifo(top / "q.png")
    (top / "broken.png").symlink_to("nowhere")
    (top / "folder.png").mkdir()
    for name in ("a.svg", "b.SVG", "notes"):
        (top / name).write_text("text")
    with caplog.at_level("INFO", "trainwright"):
        bundle = bundle_of(path=str(tmp_path), split={"val": 0, "test": 0})
    names = [Path(name).name for name in bundle.identifiers["train"].values]
    assert sorted(names) == ["000.png", "001.png", "002.png", "003.png", "004.png", "005.png", "8.gif"]
    (line,) = [line for line in caplog.messages if "left out" in line]
    assert line.endswith("left out: 2 .svg, 2 broken links, pipes or the like, 1 without an ending")
    assert len(files_of(tmp_path) or ()) == 7


def test_a_corrupt_image_is_named(tmp_path: Path) -> None:
    bad = folder(tmp_path, 10) / "top" / "004.png"
    bad.write_bytes(encoded(4)[:60])
    bundle = bundle_of(path=str(tmp_path), split={"val": 0, "test": 0})
    with pytest.raises(DataError, match=r"004\.png cannot be decoded: .*on_corrupt: skip"):
        bundle.splits["train"].take(np.arange(10))


def test_no_program_is_started_for_what_only_claims_to_be_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr("subprocess.check_call", lambda *command, **_: started.append(command))
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs")
    raw = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(a) print\n"
    with pytest.raises(DataError, match=r"x\.png cannot be decoded: it is not one of JPEG"):
        decode(raw, "rgb", "x.png")
    with pytest.raises(OSError, match="cannot identify"):
        decoder_of("png", "rgb8")(raw)
    assert started == []


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_of_16_bits_the_upper_8_count_and_32_bits_are_refused(kind: str) -> None:
    ramp = np.arange(0, 65536, 455, np.uint16)[:144].reshape(12, 12)
    stream = io.BytesIO()
    Image.fromarray(ramp).save(stream, kind)
    for mode, channels in (("gray", 1), ("rgb", 3)):
        image = decode(stream.getvalue(), mode, "x")  # type: ignore[arg-type]
        np.testing.assert_array_equal(image, np.repeat((ramp // 256)[:, :, None], channels, axis=2))
    np.testing.assert_array_equal(decoder_of("tiff", "l8")(stream.getvalue()), ramp // 256)
    stream = io.BytesIO()
    Image.fromarray(ramp.astype(np.float32)).save(stream, "TIFF")
    with pytest.raises(DataError, match=r"x cannot be used: .*32 bits .*save it with 8 or 16 bits"):
        decode(stream.getvalue(), "rgb", "x")


def journalled(run: Any, kind: str) -> list[Any]:
    lines = [json.loads(line) for path in sorted((run.path / "journal").iterdir()) for line in path.open()]
    return [line["detail"] for line in lines if line.get("kind") == "decision" and line.get("name") == kind]


def settings(root: Path, **data: Any) -> dict[str, Any]:
    listed = [
        {"type": "random_crop", "size": 6, "padding": 1},
        "horizontal_flip",
        {"type": "rotation", "degrees": 5},
    ]
    return {
        "data": {"type": "image_folder", "path": str(root), "transforms": [*listed, "normalize"], **data},
        "model": {"type": "cnn", "filters": [4], "hidden": [6], "dropout": 0.1, "normalization": "batch"},
        "training.batch_size": 8,
        "training.drop_last": True,
        "training.max_steps": 14,
        "evaluation.every_n_steps": 6,
    }


def test_corrupt_images_are_skipped_counted_and_recorded_and_runs_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = folder(tmp_path / "data", 30)
    for bad in ("top/004.png", "bottom/007.png"):
        (root / bad).write_bytes(b"no image")
    given = settings(root, on_corrupt="skip", cache="memory")
    whole, resumed = whole_and_resumed(tmp_path, given, at=13)
    assert_same(resumed, whole)
    (detail,) = journalled(whole, "skip")
    assert detail["count"] == 2
    assert sorted(Path(name).name for name in detail["samples"]) == ["004.png", "007.png"]
    said = [line for line in caplog.messages if "corrupt image" in line or "cannot be decoded" in line]
    names = ", ".join(str(root / bad) for bad in ("bottom/007.png", "top/004.png"))
    assert set(said) == {f"data: 2 corrupt images are left out: {names} (data.on_corrupt: skip)"}
    (root / "bottom/007.png").unlink()
    caplog.clear()
    found = trainwright.predict(whole, root)
    assert [Path(name) for name in found["image"]] == [
        path for path in sorted(root.rglob("*.png")) if path.name != "004.png"
    ]
    (said,) = [line for line in caplog.messages if "corrupt image" in line]
    assert said == f"data: 1 corrupt image is left out: {root / 'top/004.png'} (data.on_corrupt: skip)"
    with pytest.raises(DataError, match=r"004\.png cannot be decoded: [^;]*; remove or repair it$"):
        trainwright.load(whole).predict([root / "top/004.png"])


FLAT = """
import torch


class Flat(torch.nn.Linear):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, features):
        return super().forward(features.flatten(1))
"""


def test_a_run_is_the_loop_by_hand(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps see the images that `read` returns, in the order of the run, and learn the blended classes."""
    (tmp_path / "flat.py").write_text(FLAT)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = {"type": "image_folder", "path": str(pictures), "split": {"val": 0.2, "test": 0.0}}
    config: dict[str, Any] = {
        "experiment": {"seed": 4},
        "data": {**data, "transforms": ["horizontal_flip", {"type": "mixup", "alpha": 1.0}]},
        "model": "flat:Flat",
        "training": {"max_steps": 7, "batch_size": 8, "optimizer": "sgd", "learning_rate": 0.1, "threads": 1},
        "checkpoint": {"save_top_k": 0},
    }
    run = trainwright.train(config, runs_dir=tmp_path / "runs")
    split = load_data(load(config, adapters=Catalog()).config).splits["train"]
    order, size = SampleOrder(len(split), 8, 4), 3 * SIDE * SIDE
    weight, bias = torch.zeros(2, size, requires_grad=True), torch.zeros(2, requires_grad=True)
    for step in range(7):
        batch = split.read(order.batch(step), Draw(4, order.cursor(step).epoch))
        logits = torch.from_numpy(batch[FEATURES]).flatten(1) @ weight.T + bias
        loss = -(torch.from_numpy(batch[TARGET]) * logits.log_softmax(1)).sum(1).mean()
        for parameter, gradient in zip(
            (weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True
        ):
            parameter.data -= 0.1 * gradient
    torch.testing.assert_close(trainwright.load(run).native.weight.detach(), weight.detach())


def test_weights_of_classes_and_rows(tmp_path: Path) -> None:
    root = folder(tmp_path / "data", 12)
    names = [str(path.relative_to(tmp_path)) for path in sorted(root.rglob("*.png"))]
    rows = "".join(f"{name},{'top' in name},{1 + i % 3}\n" for i, name in enumerate(names))
    (tmp_path / "table.csv").write_text("image,label,weight\n" + rows)
    data = {"type": "image_table", "path": str(tmp_path / "table.csv"), "target": "label", "weight": "weight"}
    given = {"data": {**data, "split": {"val": 0.25, "test": 0.0}}, "model": {"type": "cnn", "filters": [2]}}
    training = {"max_steps": 2, "batch_size": 4, "threads": 1, "class_weights": {"true": 3.0}}
    run = trainwright.train({**given, "training": training}, runs_dir=tmp_path / "runs")
    model, bundle = trainwright.load(run), load_data(load(given, adapters=Catalog()).config)
    batch = bundle.splits["val"].take(np.arange(len(bundle.splits["val"])))
    rate = model.predict_proba([tmp_path / str(name) for name in bundle.identifiers["val"].values])
    losses = -np.log(rate[np.arange(len(rate)), batch[TARGET]])
    expected = (losses * batch["weight"]).sum() / batch["weight"].sum()
    assert run.result["metrics"]["val_loss"] == pytest.approx(expected, rel=1e-4)
    mixing = {"transforms": ["normalize", "mixup"]}
    (tmp_path / "data/top/000.png").write_bytes(b"no image")  # refused before any image is read
    with pytest.raises(DataError, match="cannot blend weights"):
        load_data(load({**given, "data": {**given["data"], **mixing}}, adapters=Catalog()).config)
    mixing = {"data.transforms": ["mixup"], "data.weight": None}
    with pytest.raises(InputError, match="blends the classes of two images"):
        trainwright.train({**given, "training": training}, mixing, runs_dir=tmp_path / "runs")


@pytest.mark.parametrize("form", ["csv", "paths", "bytes", "structs"])
def test_tables_of_images(form: str, pictures: Path, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "images").mkdir()
    for i in range(8):
        (tmp_path / "images" / f"{i}.png").write_bytes(encoded(i))
    paths, amounts = [f"images/{i}.png" for i in range(8)], [i + 0.25 for i in range(8)]
    cells: list[Any] = {
        "bytes": [encoded(i) for i in range(8)],
        "structs": [{"bytes": encoded(i), "path": None} for i in range(8)],
    }.get(form, paths)
    if form == "csv":
        lines = [f"{path},{amount}" for path, amount in zip(paths, amounts, strict=True)]
        (tmp_path / "t.csv").write_text("\n".join(["photo,amount", *lines]))
    else:
        parquet.write_table(pyarrow.table({"photo": cells, "amount": amounts}), tmp_path / "t.parquet")
    path = tmp_path / ("t.csv" if form == "csv" else "t.parquet")
    bundle = bundle_of(
        type="image_table", path=str(path), image="photo", target="amount", split={"val": 0, "test": 0}
    )
    batch = bundle.splits["train"].take(np.arange(8))
    assert bundle.info.task == "regression"
    np.testing.assert_array_equal(batch[TARGET], np.array(amounts, np.float32))
    np.testing.assert_allclose(batch[FEATURES][5].transpose(1, 2, 0) * 255, pixels(5), atol=1e-3)


def test_predictions_of_folders_paths_bytes_and_arrays_are_those_of_the_evaluation(
    pictures: Path, tmp_path: Path
) -> None:
    run = trainwright.train(
        {"training": {"threads": 1}, **{k: v for k, v in settings(pictures).items() if "." not in k}},
        {k: v for k, v in settings(pictures).items() if "." in k},
        runs_dir=tmp_path,
    )
    model = trainwright.load(run)
    files = sorted(pictures.rglob("*.png"))
    found = trainwright.predict(run, pictures)
    assert [Path(name) for name in found["image"]] == files
    arrays = [pixels(int(file.stem)) for file in files]
    for rows in (
        files,
        [file.read_bytes() for file in files],
        arrays,
        [{"image": str(file)} for file in files],
    ):
        np.testing.assert_array_equal(model.outputs(rows)[:, 0], found["probability_bottom"])
    (pictures.parent / "t.csv").write_text(
        "image\n" + "".join(f"{file.relative_to(pictures.parent)}\n" for file in files)
    )
    by_table = trainwright.predict(run, pictures.parent / "t.csv")
    assert by_table["probability_top"].tolist() == pytest.approx(found["probability_top"].tolist(), rel=1e-6)
    with pytest.raises(DataError, match="int64 of shape"):
        model.predict([np.zeros((SIDE, SIDE, 3), np.int64)])
    new = tmp_path / "new"
    new.mkdir()
    (new / "a.png").write_bytes(files[0].read_bytes())
    (new / "b.png").write_bytes(b"no image")
    (new / "t.csv").write_text("image\nb.png\na.png\nc.png\n")
    for rows, bad in ((new, [False, True]), (new / "t.csv", [True, False, True])):
        found = trainwright.predict(run, rows)
        assert found["prediction"].isna().tolist() == bad
        assert ["cannot be decoded" in str(text) for text in found["error"]][:2] == bad[:2]
        assert len(trainwright.predict(run, rows, on_error="skip")) == 1


@pytest.mark.soak
@pytest.mark.parametrize("other", [{"data.workers": 2}, {"data.cache": "memory"}, {"distributed.nproc": 2}])
def test_how_images_are_read_changes_no_bit(other: dict[str, Any], pictures: Path, tmp_path: Path) -> None:
    given = {**settings(pictures), "distributed.virtual.data": 2, "training.microbatch_size": 2}
    given["data"]["transforms"].append("mixup")
    whole, resumed = whole_and_resumed(tmp_path / "one", given)
    assert_same(resumed, whole)
    again = trainwright.train(SMALL, {**given, **other}, runs_dir=tmp_path / "two")
    assert again.digest == whole.digest
    assert trainwright.reproduce(whole).verdict == "identical"


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"type": "iris", "transforms": ["normalize"]}, DataError, "is for images in files"),
        (
            {"type": "iris", "on_corrupt": "skip"},
            DataError,
            "data.on_corrupt is for samples that are read one by one",
        ),
        ({"path": "nowhere"}, DataError, "nowhere is not a folder"),
        ({"transforms": [{"type": "resize", "size": 0}]}, ConfigError, r"transforms\.0\.size"),
        ({"transforms": ["mirror"]}, ConfigError, "horizontal_flip"),
        ({"transforms": ["nowhere:fn"]}, DataError, "nowhere"),
        ({"weight": "w"}, DataError, "data.weight needs a named column"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    data: dict[str, Any], error: type[Exception], message: str, pictures: Path, tmp_path: Path
) -> None:
    given = {"type": "image_folder", "path": str(pictures), **data}
    given = {key: value for key, value in given.items() if given["type"] == "image_folder" or key != "path"}
    with pytest.raises(error, match=message):
        trainwright.train({"data": given, "model": "mlp", "training": {"max_steps": 1}}, runs_dir=tmp_path)


def test_random_transforms_need_torch(pictures: Path, tmp_path: Path) -> None:
    data = {"type": "image_folder", "path": str(pictures), "transforms": ["horizontal_flip"]}
    with pytest.raises(ModelError, match="horizontal_flip changes images at random"):
        trainwright.train({"data": data, "model": "random_forest"}, runs_dir=tmp_path)


def test_a_transform_of_ones_own(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_aug.py").write_text(
        "def darker(image, rng, most):\n    return (image * (1 - most * rng.random())).astype('uint8')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = settings(pictures)
    given["data"]["transforms"] = [{"type": "my_aug:darker", "most": 0.5}]
    whole, resumed = whole_and_resumed(tmp_path / "runs", given)
    assert_same(resumed, whole)
    assert whole.result["determinism"]["tier"] == "bitwise"
    manifest = json.loads((whole.path / "manifest.json").read_text())
    assert "my_aug" in manifest["code"]["modules"]


def test_a_transform_that_draws_from_another_generator_is_not_called_exact(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_aug.py").write_text(
        "import random\n\n\ndef flip(image, rng):\n    return image[:, ::-1] if random.random() < 0.5 else image\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {**settings(pictures, transforms=[{"type": "their_aug:flip"}]), "training.max_steps": 1}
    run = trainwright.train(SMALL, given, runs_dir=tmp_path / "runs")
    reason = "a function of data.transforms returns another image when it is called again"
    assert run.result["determinism"] == {"tier": "statistical", "reason": reason}
    with pytest.raises(InputError, match=f"bitwise was requested, .* statistical: {reason}"):
        trainwright.train(SMALL, {**given, "training.determinism": "bitwise"}, runs_dir=tmp_path / "runs")


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_examples_run_in_a_small_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["image_folder.py", "digits", "--images", "150", "--epochs", "2"])
    runpy.run_path(str(EXAMPLES / "image_folder.py"), run_name="__main__")
    assert "digits/7/0007.png" in capsys.readouterr().out
    run = trainwright.train(EXAMPLES / "digits_cnn.yaml", {"training.epochs": 2}, runs_dir=tmp_path / "runs")
    assert run.result["metrics"]["test_accuracy"] > 0.8
