"""Which folders are classes, which are splits, and which are neither, tree by tree."""

from __future__ import annotations

import json
import os

import pytest
from PIL import Image

from infsa_explain.data import ImageFolder, PhotoDigits, open_data

CLASSIC = "train/cat/a.png train/dog/b.png"


def grow(root, files, texts=()):
    """A tree of images, given with spaces between, and of empty text files."""
    for name in files.split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3)).save(root / name, "PNG")
    for name in texts:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    return root


def found(root, split="val"):
    """Classes and images of a folder, an image as "its id: its class"."""
    data = open_data(root, split=split)
    names = [None if label is None else data.classes[label] for label in data.labels]
    ids = [data[i].image_id for i in range(len(data))]
    return data.classes, [f"{i}: {name}" for i, name in zip(ids, names, strict=True)]


class TestSplits:
    @pytest.mark.parametrize(
        ("train", "val", "test"),
        [
            ("train", "val", "test"),
            ("train", "valid", "test"),
            ("Training", "VALIDATION", "Testing"),
            ("TRAIN", "Valid", "TEST"),
            ("training_set", "validation_set", "test_set"),
            ("seg_train", "seg_val", "seg_test"),
            ("train2017", "val2017", "test2017"),
            ("train_images", "val_images", "test_images"),
        ],
    )
    def test_are_told_by_their_names(self, tmp_path, train, val, test):
        """In each a class is missing, and no label moves."""
        grow(tmp_path, f"{train}/cat/a.png {train}/dog/b.png {val}/dog/c.png {test}/cat/d.png")
        classes = ["cat", "dog"]
        assert found(tmp_path) == (classes, [f"{val}/dog/c.png: dog"])
        assert found(tmp_path, "test") == (classes, [f"{test}/cat/d.png: cat"])
        assert found(tmp_path, "train") == (
            classes, [f"{train}/cat/a.png: cat", f"{train}/dog/b.png: dog"],
        )  # fmt: skip

    @pytest.mark.parametrize("lone", ["test", "Validation", "training"])
    def test_one_alone(self, tmp_path, lone):
        grow(tmp_path, f"{lone}/cat/a.png {lone}/dog/b.png")
        split = {"t": "test", "V": "val", "training": "train"}[lone if lone[-1] == "g" else lone[0]]
        assert found(tmp_path, split)[0] == ["cat", "dog"]
        other = "val" if split != "val" else "test"
        with pytest.raises(ValueError, match=rf"has no split '{other}'; it has \['{lone}'\]: choo"):
            open_data(tmp_path, split=other)

    def test_without_one_the_others_are_named(self, tmp_path):
        grow(tmp_path, f"{CLASSIC} test/cat/c.png")
        with pytest.raises(ValueError, match=r"no split 'val'; it has \['test', 'train'\]: choose"):
            open_data(tmp_path)

    def test_two_folders_of_one_split(self, tmp_path):
        grow(tmp_path, f"{CLASSIC} val/cat/c.png validation/cat/d.png")
        with pytest.raises(ValueError, match="has 2 folders of the split 'val', 'val', 'valid"):
            open_data(tmp_path)

    def test_in_a_folder_of_their_own_name(self, tmp_path):
        grow(tmp_path, "train/train/cat/a.png train/train/dog/b.png test/test/dog/c.png")
        assert found(tmp_path, "train")[0] == ["cat", "dog"]
        assert found(tmp_path, "test") == (["cat", "dog"], ["test/test/dog/c.png: dog"])

    def test_within_every_class(self, tmp_path):
        grow(tmp_path, "cat/train/a.png cat/test/b.png dog/train/c.png dog/test/d.png")
        assert found(tmp_path, "test") == (
            ["cat", "dog"], ["cat/test/b.png: cat", "dog/test/d.png: dog"],
        )  # fmt: skip
        with pytest.raises(ValueError, match=r"cat' has no split 'val'; it has \['test', 'train'"):
            open_data(tmp_path)

    def test_without_labels(self, tmp_path):
        grow(tmp_path, "train/cat.0.png train/dog.0.png test1/1.png")
        assert found(tmp_path, "test") == ([], ["test1/1.png: None"])

    @pytest.mark.parametrize("layout", ["{}/images/1.png", "images/{}/1.png"])
    def test_of_a_detector(self, tmp_path, layout):
        """Texts of boxes beside the images are no class, nor is the folder of the images."""
        images = " ".join(layout.format(split) for split in ("train", "valid", "test"))
        texts = [name.replace("images", "labels").replace("png", "txt") for name in images.split()]
        grow(tmp_path, images, texts)
        for split, name in (("train", "train"), ("val", "valid"), ("test", "test")):
            data = open_data(tmp_path, split=split)
            assert (len(data), data.classes, data.labels) == (1, [], [None])
            assert name in data[0].image_id

    @pytest.mark.parametrize("split", ["test/a.png", "valid/cat/a.png", "train/cat/a.png"])
    def test_are_never_classes(self, tmp_path, split):
        grow(tmp_path, f"cat/b.png dog/c.png {split}")
        name = split.split("/")[0]
        with pytest.raises(ValueError, match=f"holds the split '{name}' beside 'cat'; give a f"):
            open_data(tmp_path)

    def test_but_a_train_among_vehicles(self, tmp_path):
        grow(tmp_path, "bus/a.png car/b.png train/c.png bullet_train/d.png test_tube/e.png")
        classes, images = found(tmp_path)
        assert classes == ["bullet_train", "bus", "car", "test_tube", "train"]
        assert images[-1] == "train/c.png: train"

    def test_photo_digits_has_no_test(self):
        with pytest.raises(ValueError, match="'train' or 'val' for 'photo-digits', got 'test'"):
            open_data("photo-digits", split="test")
        with pytest.raises(ValueError, match="split must be 'train' or 'val', got 'test'"):
            PhotoDigits("test")

    def test_tiny_imagenets_test_has_no_labels(self, tmp_path):
        grow(tmp_path, "train/n01/images/a.png val/n01/b.png test/images/t.png")
        (tmp_path / "wnids.txt").write_text("n01\n")
        assert found(tmp_path, "test") == (["n01"], ["test/images/t.png: None"])


class TestWhatIsNoClass:
    def test_folders_that_systems_make(self, tmp_path):
        system = (
            "@eaDir/cat/a.png cat/@eaDir/a.png/S.png __MACOSX/cat/._a.png .ipynb_checkpoints/a.png "
            "dog/.ipynb_checkpoints/a.png .hidden/a.png cat/._a.png ._a.png #recycle/z.png "
            "$RECYCLE.BIN/q.png @__thumb/a.png lost+found/a.png"
        )
        grow(tmp_path, f"cat/a.png dog/b.png {system}")
        grow(tmp_path, "", ["Thumbs.db", ".DS_Store", "cat/Thumbs.db", "cat/.DS_Store"])
        assert found(tmp_path) == (["cat", "dog"], ["cat/a.png: cat", "dog/b.png: dog"])

    def test_nor_splits_of_them(self, tmp_path):
        grow(tmp_path, f"{CLASSIC} val/cat/c.png val/@eaDir/c.png __MACOSX/train/cat/a.png")
        assert found(tmp_path) == (["cat", "dog"], ["val/cat/c.png: cat"])

    def test_masks_and_annotations(self, tmp_path):
        grow(tmp_path, "images/a.png annotations/trimaps/a.png masks/a.png")
        assert found(tmp_path) == ([], ["images/a.png: None"])

    def test_vocs_masks(self, tmp_path):
        root = grow(tmp_path / "VOC2012", "SegmentationClass/a.png SegmentationObject/a.png")
        with pytest.raises(ValueError, match="VOC2012' holds no images"):
            open_data(root)
        with pytest.raises(ValueError, match="SegmentationClass' holds masks and no photographs"):
            open_data(root / "SegmentationClass")
        grow(root, "JPEGImages/a.png")
        assert found(root) == ([], ["JPEGImages/a.png: None"])

    @pytest.mark.parametrize(
        ("files", "words"),
        [
            ("images/a.png cat/a.png", "holds 'images' beside other folders of images, such as 'c"),
            ("a.png cat/b.png", "holds images beside class folders, such as 'a.png' and 'cat'"),
            ("a/b/c/cat/1.png a/b/c/dog/2.png", "a' holds only folders of folders; give"),
            ("a/b/VOC/JPEGImages/a.png a/b/VOC/SegmentationClass/a.png", "a' is not a class: it"),
            ("a/b/c/train/x/1.png a/b/c/test/x/1.png d/x/1.png", "a' is not a class: it holds"),
            ("@eaDir/a.png", "holds no images"),
        ],
    )
    def test_what_is_neither_is_refused(self, tmp_path, files, words):
        with pytest.raises(ValueError, match=words) as caught:
            open_data(grow(tmp_path, files))
        assert "\n" not in str(caught.value)

    def test_voc_without_a_list_of_the_split(self, tmp_path):
        grow(tmp_path, "JPEGImages/a.png JPEGImages/b.png")
        lists = tmp_path / "ImageSets/Main"
        lists.mkdir(parents=True)
        (lists / "test.txt").write_text("b\n")
        assert found(tmp_path, "test") == ([], ["JPEGImages/b.png: None"])
        with pytest.raises(ValueError, match=r"Main' has no list val\.txt; it has those of \['tes"):
            open_data(tmp_path)

    def test_cocos_folder(self, tmp_path):
        grow(tmp_path, "train2017/a.png val2017/b.png")
        for split in ("train", "val"):
            file = tmp_path / f"annotations/instances_{split}2017.json"
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps({}))
        with pytest.raises(ValueError, match=r"is laid out as COCO; .*instances_val2017\.json'$"):
            open_data(tmp_path)
        assert found(tmp_path / "val2017") == ([], ["b.png: None"])


class TestAboveADataSet:
    @pytest.mark.parametrize("above", ["", "archive"])
    @pytest.mark.parametrize(
        ("files", "texts", "classes"),
        [
            ("cat/1.png dog/2.png", (), ["cat", "dog"]),
            ("train/cat/1.png train/dog/2.png val/dog/3.png", (), ["cat", "dog"]),
            ("JPEGImages/a.png SegmentationClass/a.png", ("ImageSets/Main/x.txt",), []),
            ("train/n01/images/a.png val/n01/b.png", ("wnids.txt",), []),
            ("Data/CLS-LOC/train/n01/a.png Data/CLS-LOC/val/n01/b.png", (), ["n01"]),
        ],
    )
    def test_as_if_the_data_set_were_given(self, tmp_path, above, files, texts, classes):
        root = grow(tmp_path / above / "data", files, texts)
        if "wnids.txt" in texts:
            (root / "wnids.txt").write_text("n01\n")
            classes = ["n01"]
        grow(tmp_path, "__MACOSX/data/._1.png", ["README.md"])
        given, whole = ImageFolder(root), ImageFolder(tmp_path)
        assert whole.fingerprint() == given.fingerprint()
        assert (whole.name, whole.classes, len(whole)) == ("data", classes, len(given))
        assert [s.image_id for s in whole] == [s.image_id for s in given]

    def test_images_is_the_folder_of_classes(self, tmp_path):
        grow(tmp_path, "images/001.Albatross/1.png images/002.Auklet/2.png", ["classes.txt"])
        assert found(tmp_path)[0] == ["001.Albatross", "002.Auklet"]

    @pytest.mark.parametrize("files", ["cat/1.png", "cat/1.png cat/x/2.png cat/y/3.png"])
    def test_a_single_class_is_one(self, tmp_path, files):
        assert found(grow(tmp_path, files))[0] == ["cat"]

    @pytest.mark.parametrize("above", ["", "VOCdevkit"])
    def test_several_are_named(self, tmp_path, above):
        for year in ("2007", "2012"):
            grow(tmp_path / above, f"VOC{year}/JPEGImages/a.png")
        with pytest.raises(ValueError, match="holds 2 data sets, 'VOC2007', 'VOC2012'; give one"):
            open_data(tmp_path)

    def test_beside_other_images(self, tmp_path):
        grow(tmp_path, "VOC2012/JPEGImages/a.png talks/figure.png")
        with pytest.raises(ValueError, match="the data set 'VOC2012' beside other images, such as"):
            open_data(tmp_path)

    @pytest.mark.shared
    def test_tiny_imagenets(self, shared):
        """Three data sets in one folder, and their own files as they are."""
        with pytest.raises(ValueError, match="2 data sets, 'tiny-imagenet-10', 'tiny-imagenet-50"):
            open_data(shared / "data")
        whole = open_data(shared / "data" / "tiny-imagenet-10")
        assert (len(whole), len(whole.classes)) == (500, 10)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
class TestLinks:
    def test_of_classes_and_within_them_are_followed(self, tmp_path):
        grow(tmp_path / "pool", "tabby/1.png hound/2.png")
        root = grow(tmp_path / "data", "cat/0.png")
        (root / "cat/more").symlink_to(tmp_path / "pool/tabby")
        (root / "dog").symlink_to(tmp_path / "pool/hound")
        assert found(root) == (
            ["cat", "dog"],
            ["cat/0.png: cat", "cat/more/1.png: cat", "dog/2.png: dog"],
        )
        (tmp_path / "elsewhere").symlink_to(root)
        assert ImageFolder(tmp_path / "elsewhere").fingerprint() == ImageFolder(root).fingerprint()

    def test_cycles_end(self, tmp_path):
        root = grow(tmp_path, "cat/1.png dog/2.png dog/deep/3.png")
        for link, target in (
            ("cat/itself", "."),
            ("cat/up", ".."),
            ("all", "."),
            ("dog/deep/back", "../../dog"),
            ("dog/again", "deep"),
            ("broken", "nowhere"),
            ("round", "round"),
        ):
            (root / link).symlink_to(target)
        classes, images = found(root)
        assert classes == ["cat", "dog"]
        assert images[:2] == ["cat/1.png: cat", "dog/2.png: dog"]
        assert len(images) == 3  # the deep one once
