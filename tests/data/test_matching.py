"""Labels of a data set as a model numbers its classes, matched by hand."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import ImageNetInfo
from torchvision.models._meta import _IMAGENET_CATEGORIES

from infsa_explain.data import (
    ImageFolder,
    LabelMap,
    LabelMismatch,
    PhotoDigits,
    Sample,
    Subset,
    match_labels,
    open_data,
)
from infsa_explain.data.labels import normalised
from infsa_explain.data.matching import without_labels

PHOTOS = ["goldfish", "goose", "ladybug", "monarch", "beacon", "go-kart", "pay-phone"]
IMAGENET = ImageNetInfo().label_descriptions()


class Images:
    """One image a label, of classes with these names."""

    name = "images"

    def __init__(self, classes, labels=None, wnids=(), box_labels=None):
        self.classes, self.wnids = list(classes), list(wnids)
        self.labels = list(range(len(self.classes))) if labels is None else labels
        self.box_labels = box_labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        pixels, boxes = np.zeros((4, 4, 3), np.uint8), np.zeros((0, 4), np.float32)
        if self.box_labels is not None:
            boxes = np.tile(np.array([0, 0, 2, 2], np.float32), (len(self.box_labels[i]), 1))
            boxes[:, 3] += np.arange(len(boxes))
            labels = np.array(self.box_labels[i], np.int64)
            return Sample(pixels, self.labels[i], boxes, str(i), labels)
        return Sample(pixels, self.labels[i], boxes, str(i))

    def fingerprint(self):
        return "images"


def matched(classes, names, **options):
    data, how = match_labels(Images(classes, **options), names)
    labels = [data[i].label for i in range(len(data))]
    assert data.labels == labels
    return labels, how


def refused(classes, names, *words, **options):
    with pytest.raises(LabelMismatch) as caught:
        match_labels(Images(classes), names, **options)
    message = str(caught.value)
    assert "\n" not in message and "--label-map" in message and "labels='position'" in message
    for word in words:
        assert word in message


class TestNormalised:
    @pytest.mark.parametrize(
        "spelling", ["go-kart", "Go_Kart", "GO KART", "gokart", "GoKart", " go-kart ", "go–kart"]
    )
    def test_spellings_of_one_name(self, spelling):
        assert normalised(spelling) == "gokart"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("caf\u00e9", "cafe\u0301"),
            ("\u00c5ngstr\u00f6m", "a\u030angstro\u0308m"),
            ("Straße", "STRASSE"),
            ("\u1100\u1161", "\uac00"),
            ("003", "3"),
            ("0", "000"),
        ],
    )
    def test_accents_case_and_zeros(self, one, other):
        assert normalised(one) == normalised(other)

    @pytest.mark.parametrize(
        ("one", "other"),
        [("12", "1 2"), ("1-0", "10"), ("-1", "1"), ("cafe", "café"), ("a.b", "ab"), ("10", "1")],
    )
    def test_names_that_differ(self, one, other):
        assert normalised(one) != normalised(other)

    @given(st.text())
    def test_is_the_same_for_both_ways_to_write_accents(self, name):
        once = normalised(name)
        assert once == normalised(unicodedata.normalize("NFC", name))
        assert once == normalised(unicodedata.normalize("NFD", name))

    def test_a_label_map_finds_spellings(self):
        labels = LabelMap({"go-kart": 4, "Cat": 0, "cat": 1, "é": 2}, "the map")
        assert [labels.find(n) for n in ("Go_Kart", "Cat", "cat", "e\u0301")] == [4, 0, 1, 2]
        assert labels.find("CAT") is None  # of two
        assert LabelMap({"7": 1, "a": 0}, "the map", numbers=True).find("007") == 1


class TestByName:
    def test_another_order_and_a_subset(self):
        """The folders of a data set are in order, and the model's classes are not."""
        assert matched(["beacon", "goose", "monarch"], PHOTOS) == ([4, 1, 3], "by name")
        assert matched(reversed(PHOTOS), PHOTOS) == ([6, 5, 4, 3, 2, 1, 0], "by name")

    def test_other_spellings(self):
        names = ["Beacon", "GO_KART", "Pay Phone", "GoldFish"]
        assert matched(names, PHOTOS) == ([4, 5, 6, 0], "by name")

    def test_numbers_are_names(self):
        digits = list("0123456789")
        assert matched(["3", "5", "9"], digits)[0] == [3, 5, 9]
        assert matched(["03", "05", "09"], digits)[0] == [3, 5, 9]
        assert matched(["9", "3"], ["3", "5", "9"])[0] == [2, 0]
        refused(["-1", "3"], digits, "class '-1' of 'images' is not among the names of the mod")

    def test_exact_names_come_first(self):
        assert matched(["Cat", "cat"], ["cat", "dog", "Cat"])[0] == [2, 0]

    def test_what_has_no_image_need_not_match(self):
        assert matched(["ant", "beacon", "goose"], PHOTOS, labels=[1, 2, 1])[0] == [4, 1, 4]
        assert matched(["ant", "beacon"], PHOTOS, labels=[None, 1])[0] == [None, 4]

    def test_refuses_what_is_not_there(self):
        refused(["ant"], PHOTOS, "class 'ant' of 'images' is not among the names of the model's 7")
        refused(
            ["ant", "bee", "goose", "cat", "dog", "emu"],
            PHOTOS,
            "classes 'ant', 'bee', 'cat' and 2 more of 'images'",
            "('goldfish', 'goose', 'ladybug' and 4 more)",
        )

    def test_refuses_a_label_without_a_name(self):
        with pytest.raises(LabelMismatch, match="^class 'number 7' of 'images' is not among the"):
            match_labels(Images(["goose"], [0, 7]), PHOTOS)

    def test_refuses_two_names_of_one_class(self):
        refused(
            ["beacon", "lighthouse"],
            ["goose", "beacon, lighthouse, pharos"],
            "'beacon' and 'lighthouse' of 'images' are both names of the model's class",
        )
        assert matched(["lighthouse"], ["goose", "beacon, lighthouse, pharos"])[0] == [1]

    def test_refuses_a_name_of_two_classes(self):
        refused(
            ["crane"], ["crane", "emu", "crane"], "'crane' of 'images' is among the names of seve"
        )

    def test_box_labels_go_along(self):
        data = Images(["dog", "cat", "tree"], [0, 1], box_labels=[[0, 2, -1, 0], [1, 0]])
        matched = match_labels(data, ["cat", "emu", "dog"]).data
        first, second = matched[0], matched[1]
        assert (first.label, first.box_labels.tolist()) == (2, [2, -1, -1, 2])
        assert (second.label, second.box_labels.tolist()) == (0, [0, 2])
        assert first.own_boxes.tolist() == data[0].own_boxes.tolist() != []

    def test_of_a_subset_of_photo_digits(self):
        data = Subset(PhotoDigits("val", 6), [5, 1])
        found = match_labels(data, list("9876543210")).data
        assert [found[i].label for i in range(2)] == [9 - data[i].label for i in range(2)]
        assert (found.name, found.fingerprint()) == (data.name, data.fingerprint())


class TestImageNet:
    def test_wordnet_ids_words_and_synonyms(self):
        wnids = ImageNetInfo().label_names()
        for names in (IMAGENET, wnids, _IMAGENET_CATEGORIES):
            for classes in (wnids, [f"{wnid}-word" for wnid in wnids], [w.upper() for w in wnids]):
                assert matched(classes, names)[0] == list(range(1000))

    def test_words(self):
        data = ["Hen", "great_white_shark", "tiger shark", "tinca tinca", "lighthouse"]
        expected = [8, 2, 3, 0, 437]
        assert matched(data, IMAGENET)[0] == matched(data, ImageNetInfo().label_names())[0]
        assert matched(data, IMAGENET)[0] == expected

    def test_the_two_cranes(self):
        """Two classes of one name: by id they match, by name they do not."""
        assert matched(["n03126707", "n02012849"], IMAGENET)[0] == [517, 134]
        refused(["crane"], IMAGENET, "is among the names of several", "'imagenet-1k' or a file")
        assert matched(["maillot", "maillot, tank suit"], IMAGENET)[0] == [638, 639]
        assert matched(["missile", "projectile"], IMAGENET)[0] == [657, 744]

    def test_ids_against_a_few_words(self):
        """As Tiny-ImageNet's folders and a model that was trained on some of its classes."""
        wnids = ["n02814860", "n02279972", "n03444034", "n03902125"]
        assert matched(wnids, PHOTOS)[0] == [4, 3, 5, 6]
        assert matched(["beacon", "monarch"], wnids)[0] == [0, 1]
        assert matched(["x", "y"], PHOTOS, wnids=["n02814860", "n02279972"])[0] == [4, 3]
        # A crane that is a machine is not the bird, where ids can tell.
        refused(["n03126707"], ["n02012849", "n01443537"], "class 'n03126707'")

    def test_ids_that_are_not_in_the_model(self):
        refused(["n00000000"], IMAGENET, "class 'n00000000' of 'images'")
        refused(["n15075142", "n01440764"], IMAGENET, "class 'n15075142' of 'images'")

    def test_larger_ones(self):
        info = ImageNetInfo("imagenet-21k-goog")
        wnids = ["n01440764", "n00007846", "n03126707"]
        expected = [info.label_names().index(wnid) for wnid in wnids]
        assert matched(wnids, info.label_descriptions())[0] == expected

    def test_a_thousand_other_names_are_not_imagenet(self):
        names = [f"class {i}" for i in range(1000)]
        refused(["n01440764"], names, "class 'n01440764'")
        assert matched(["Class_7"], names)[0] == [7]


class TestByPosition:
    def test_numbers_and_no_names(self):
        data, how = match_labels(Images("0123"), None, outputs=4)
        assert how == "by position: neither side has class names"
        assert [data[i].label for i in range(4)] == [0, 1, 2, 3]
        assert match_labels(PhotoDigits("val", 3), None, outputs=10).how == how

    def test_numbers_of_a_table_are_labels(self, tmp_path):
        """Whichever of them there are; unlike folders, whose numbers may be names."""
        for i in range(3):
            Image.new("RGB", (4, 3)).save(tmp_path / f"{i}.png")
        table = tmp_path / "a.csv"
        table.write_text("path,label,x0,y0,x1,y1\n0.png,7,,,,\n1.png,2,,,,\n2.png,0,,,,\n")
        data = open_data(table)
        for part in (data, Subset(data, [0, 1, 2])):
            found = match_labels(part, None, outputs=10).data
            assert [found[i].label for i in range(3)] == [7, 2, 0]
        for outputs in (7, None):
            with pytest.raises(LabelMismatch, match="numbers 8 classes"):
                match_labels(data, None, outputs=outputs)
        names = ["0", "2", "7"]
        found = match_labels(data, names).data
        assert [found[i].label for i in range(3)] == [2, 1, 0]

    @pytest.mark.parametrize(
        ("classes", "outputs", "words"),
        [
            ("012", 4, "numbers 3 classes, and the model has 4 outputs without names"),
            ("012", None, "an unknown number of outputs without names"),
            ("359", 3, "names classes '3', '5', '9', and the model has no class names"),
            (["cat"], 1, "names class 'cat', and the model has no class names to match"),
        ],
    )
    def test_refuses_names_on_one_side_and_other_numbers(self, classes, outputs, words):
        refused(classes, None, words, outputs=outputs)

    def test_refuses_numbers_for_names(self):
        refused("0123456", PHOTOS, "classes '0', '1', '2' and 4 more of 'images' are not among")
        refused(map(str, range(1000)), IMAGENET, "'imagenet-1k' or a file of the names by output")

    @pytest.mark.parametrize("names", [None, PHOTOS])
    def test_asked_for(self, names):
        data, how = match_labels(Images(["ant", "bee"]), names, outputs=7, labels="position")
        assert ([data[0].label, data[1].label], how) == ([0, 1], "by position, asked for")
        refused([*PHOTOS, "x"], names, "has 8 classes, and the model 7 outputs", outputs=7, labels="position")  # fmt: skip  # noqa: E501

    def test_by_name_alone(self):
        assert match_labels(Images(["goose"]), PHOTOS, labels="name").how == "by name"
        refused("0123", None, "and the model has no class names", outputs=4, labels="name")

    def test_refuses_another_word(self):
        with pytest.raises(ValueError, match="labels must be 'auto', 'name' or 'position', got 'x"):
            match_labels(Images(["goose"]), PHOTOS, labels="x")


class TestWithout:
    def test_data_without_labels_or_names(self):
        assert match_labels(Images([], [None, None]), PHOTOS).how == "no labels used"
        data, how = match_labels(Images([], [3, 99]), PHOTOS)
        assert how.startswith("as the data numbers them")
        assert [data[0].label, data[1].label] == [3, 99]

    def test_own_boxes_stay(self):
        data = Images(["dog", "cat"], [0, None], box_labels=[[0, 1, 0], [1, 1]])
        bare, how = without_labels(data)
        assert (how, bare.labels) == ("no labels used", [None, None])
        assert (bare[0].label, bare[0].box_labels) == (None, None)
        assert bare[0].own_boxes.tolist() == data[0].boxes[[0, 2]].tolist()
        assert bare[1].own_boxes.shape == (0, 4)
        digits = PhotoDigits("val", 2)
        assert without_labels(digits).data[1].own_boxes.tolist() == digits[1].boxes.tolist() != []


class TestLabelMaps:
    def folder(self, root, *names):
        for name in names:
            (root / name).mkdir(parents=True)
            Image.new("RGB", (4, 3)).save(root / name / "a.png")
        return root

    def test_give_the_models_labels(self, tmp_path):
        root = self.folder(tmp_path / "data", "dog", "cat")
        (tmp_path / "names.txt").write_text("emu\ndog\ncat\n")
        data = open_data(root, label_map=tmp_path / "names.txt")
        given, how = match_labels(Subset(data, [1, 0]), PHOTOS)
        assert [given[0].label, given[1].label] == [2, 1]
        assert how == f"label map {str(tmp_path / 'names.txt')!r}"
        assert match_labels(ImageFolder(root, class_names=["dog", "cat"]), PHOTOS).how == (
            "argument class_names"
        )
        with pytest.raises(LabelMismatch, match="names.txt' gives 'cat' the label 2, .* 0 to 1; "):
            match_labels(data, None, outputs=2)
        with pytest.raises(ValueError, match="labels='name' and the label map .* leave one out"):
            match_labels(data, PHOTOS, labels="name")

    def test_macs_file_names(self, tmp_path):
        """A Mac writes é in two characters, a text file in one."""
        root = self.folder(tmp_path / "data", "cafe\u0301", "the\u0301")
        (tmp_path / "names.txt").write_text("th\u00e9\ncaf\u00e9\n", encoding="utf-8")
        assert open_data(root, label_map=tmp_path / "names.txt").labels == [0, 1]
        data = match_labels(open_data(root), ["caf\u00e9", "tea", "TH\u00c9"]).data
        assert {data[i].image_id[0]: data[i].label for i in range(2)} == {"c": 0, "t": 2}
