"""From folder names to a model's labels, by maps written down by hand and by timm's."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from timm.data import ImageNetInfo

from infsa_explain.data import ImageFolder, LabelMap, open_data, open_label_map


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3)).save(path, "PNG")


def classes_below(root, *names):
    for name in names:
        save(root / name / "a.png")
    return root


class TestLabelMap:
    def test_names_and_numbers(self):
        labels = LabelMap({"7": 1, "a": 0}, "the map", numbers=True)
        assert [labels.find(name) for name in ("a", "7", "0", "1")] == [0, 1, 0, 1]
        assert {labels.find(name) for name in ("2", "-1", "²", "1_0", "b", None)} == {None}
        assert LabelMap.of(["x", "y", "x"], "the map").find("1") is None
        assert LabelMap.of(["x", "y", "x"], "the map").classes == ["x", "y"]
        with pytest.raises(ValueError, match=r"^'b' is not among the map$"):
            labels.require("b", "'b'")

    def test_imagenet(self):
        labels, info = open_label_map("imagenet-1k"), ImageNetInfo()
        assert labels.wnids == info.label_names()
        assert [labels.find(wnid) for wnid in labels.wnids] == list(range(1000))
        assert [labels.find(str(i)) for i in range(1001)] == [*range(1000), None]
        assert len(labels.classes) == 1000
        assert labels.classes[:3] == ["tench", "goldfish", "great white shark"]
        assert labels.classes[999] == "toilet tissue"

    def test_json(self, tmp_path):
        (tmp_path / "a.json").write_text(json.dumps({"cat": 2, "-dog ü": 0, "kitten": 2}))
        labels = open_label_map(tmp_path / "a.json")
        assert labels.classes == ["-dog ü", "1", "cat"]
        assert [labels.find(name) for name in ("cat", "kitten", "-dog ü", "1")] == [2, 2, 0, 1]

    def test_a_name_a_line(self, tmp_path):
        (tmp_path / "a.txt").write_text('great "white" shark, man-eater\r\n emu \n\n')
        assert open_label_map(tmp_path / "a.txt").classes == [
            'great "white" shark, man-eater', "emu"
        ]  # fmt: skip
        (tmp_path / "a.csv").write_text('"shark, white",n01484850\nemu\n')
        assert open_label_map(str(tmp_path / "a.csv")).classes == ["shark, white", "emu"]

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("a.json", "[1]", "must be an object such as"),
            ("a.json", "{}", "must be an object such as"),
            ("a.json", '{\n"a": }', "line 2: not JSON"),
            ("a.json", '{"a": "0"}', "the label of 'a' must be a whole number .* got '0'"),
            ("a.json", '{"a": -1}', "got '-1'"),
            ("a.json", '{"a": true}', "got 'True'"),
            ("a.json", '{"a": 1000000}', "from 0 to 999999, got '1000000'"),
            ("a.txt", "", "line 1 is blank"),
            ("a.txt", "a\n\nb", "line 2 is blank; every line must name a class"),
            ("a.txt", "a\nb\na", "line 3: 'a' is already in line 1"),
            ("a.txt", "\n" * 1_000_001 + "a", "more than 1000000 lines"),
            ("a.csv", "a\n,b", "line 2 is blank"),
            ("a.csv", "a\n" + "b" * 200_000, "line 2: field larger"),
        ],
    )
    def test_refuses_what_is_malformed(self, tmp_path, name, content, words):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=words) as caught:
            open_label_map(tmp_path / name)
        assert repr(str(tmp_path / name)) in str(caught.value) and "\n" not in str(caught.value)

    def test_refuses_what_is_not_there(self, tmp_path):
        with pytest.raises(ValueError, match="'imagenet' is neither 'imagenet-1k' nor a file"):
            open_label_map("imagenet")
        with pytest.raises(ValueError, match="nor a file"):
            open_label_map(tmp_path)


class TestFolders:
    def test_wnids(self, tmp_path):
        root = classes_below(tmp_path, "n15075141", "n01443537")
        assert ImageFolder(root).labels == [0, 1]
        data = ImageFolder(root, label_map="imagenet-1k")
        assert [(s.image_id, s.label) for s in data] == [
            ("n01443537/a.png", 1),
            ("n15075141/a.png", 999),
        ]
        assert (len(data.classes), data.classes[1], data.wnids[1]) == (
            1000,
            "goldfish",
            "n01443537",
        )
        assert data.name == tmp_path.name

    def test_the_numbers_of_imagenet_v2(self, tmp_path):
        """All thousand: numbers sort as numbers. Some: a position, or by the map the number."""
        root = classes_below(tmp_path / "all", *map(str, range(1000)))
        for label_map in (None, "imagenet-1k"):
            data = ImageFolder(root, label_map=label_map)
            assert data.labels == list(range(1000))
            assert data[10].image_id == "10/a.png"
        root = classes_below(tmp_path / "some", "100", "7", "20")
        assert (ImageFolder(root).labels, ImageFolder(root).classes) == (
            [0, 1, 2],
            ["7", "20", "100"],
        )
        data = open_data(root, label_map="imagenet-1k")
        assert [(s.image_id, s.label) for s in data] == [
            ("7/a.png", 7),
            ("20/a.png", 20),
            ("100/a.png", 100),
        ]

    def test_tiny_imagenet(self, tmp_path):
        """Its own labels, or those of ImageNet-1K: a choice."""
        (tmp_path / "wnids.txt").write_text("n01443537\nn01440764\nn02165456\n")
        (tmp_path / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\n")
        listing = tmp_path / "val/val_annotations.txt"
        for i, wnid in enumerate(("n01443537", "n02165456")):
            save(tmp_path / f"val/images/val_{i}.JPEG")
            with listing.open("a") as file:
                file.write(f"val_{i}.JPEG\t{wnid}\t0\t0\t1\t1\n")
        own, mapped = ImageFolder(tmp_path), ImageFolder(tmp_path, label_map="imagenet-1k")
        assert (own.labels, own[1].box_labels.tolist()) == ([1, 2], [2])
        assert own.classes == ["n01440764", "goldfish", "n02165456"]
        assert (mapped.labels, mapped[1].box_labels.tolist()) == ([1, 301], [301])
        assert mapped.classes[301] == "ladybug"
        (tmp_path / "wnids.txt").write_text("n01443537\nn02165456\nn00000000\n")
        with pytest.raises(ValueError, match=r"wnids.txt': 'n00000000' is not among the label map"):
            ImageFolder(tmp_path, label_map="imagenet-1k")

    def test_names_that_are_odd(self, tmp_path):
        names = ["-dash", "a b", "it's", 'say "ü"', "<b>"]
        root = classes_below(tmp_path / "data", *names)
        (tmp_path / "names.txt").write_text("\n".join(reversed(names)), encoding="utf-8")
        data = open_data(root, label_map=tmp_path / "names.txt")
        assert data.classes == names[::-1]
        assert {s.image_id.split("/")[0]: s.label for s in data} == {
            name: label for label, name in enumerate(names[::-1])
        }

    @pytest.mark.parametrize("name", ["cat", "1000", "n00000000"])
    def test_refuses_a_folder_that_is_not_in_the_map(self, tmp_path, name):
        root = classes_below(tmp_path, "n01443537", name)
        with pytest.raises(ValueError, match=f"{name}' is not among the label map 'imagenet-1k'"):
            ImageFolder(root, label_map="imagenet-1k")

    def test_two_names_of_one_class(self, tmp_path):
        root = classes_below(tmp_path / "data", "kitten", "cat", "dog")
        (tmp_path / "a.json").write_text('{"dog": 0, "cat": 1, "kitten": 1}')
        data = ImageFolder(root, label_map=tmp_path / "a.json")
        assert [(s.image_id, s.label) for s in data] == [
            ("dog/a.png", 0),
            ("cat/a.png", 1),
            ("kitten/a.png", 1),
        ]

    def test_flat_images_take_the_names_of_their_annotations(self, tmp_path):
        save(tmp_path / "a.png")
        assert ImageFolder(tmp_path, label_map="imagenet-1k").labels == [None]
        (tmp_path / "a.xml").write_text(
            "<annotation><object><name>n01443537</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
            "<xmax>2</xmax><ymax>2</ymax></bndbox></object></annotation>"
        )
        assert ImageFolder(tmp_path, label_map="imagenet-1k").labels == [1]
        (tmp_path / "names.txt").write_text("cat\n")
        with pytest.raises(ValueError, match="no class in .*, such as 'n01443537', is among the"):
            ImageFolder(tmp_path, label_map=tmp_path / "names.txt")

    def test_refuses_two_sources_of_labels(self, tmp_path):
        root = classes_below(tmp_path, "cat")
        with pytest.raises(ValueError, match="class_names and label_map both give labels"):
            ImageFolder(root, class_names=["cat"], label_map="imagenet-1k")
        with pytest.raises(ValueError, match="must be left out for 'photo-digits'"):
            open_data("photo-digits", label_map="imagenet-1k")
