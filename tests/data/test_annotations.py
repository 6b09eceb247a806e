"""Boxes from VOC, COCO and CSV files, against pixels painted where the boxes are."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from PIL import Image

from infsa_explain.data import (
    CocoImages,
    ImageError,
    ImageFolder,
    Sample,
    Subset,
    TableImages,
    open_data,
)
from infsa_explain.data.annotations import read_coco, read_table, read_voc
from infsa_explain.data.frames import flaw, upright_boxes

TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a),
}
#: What the three images of every golden test show: stored size, box as stored, class, and the
#: box of the upright image. The first is to be turned clockwise by a quarter: (x, y) comes to
#: (40 - y, x).
GOLDEN = {
    "a rotated.jpg": ((60, 40), (8, 16, 32, 24), "cat", [16, 8, 24, 32]),
    "grey ü.png": ((32, 48), (8, 0, 24, 16), "dog", [8, 0, 24, 16]),
    "-cmyk'.jpeg": ((48, 48), (32, 32, 48, 48), "cat", [32, 32, 48, 48]),
}


def paint(path, size=(20, 10), box=(0, 0, 0, 0), mode="RGB", orientation=1, **kwargs):
    """A black image, white within a box of whole pixels, to be turned by its orientation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros(size[::-1], dtype=np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    kwargs |= {"exif": exif} if orientation != 1 else {}
    Image.fromarray(pixels).convert(mode).save(path, **kwargs)


def golden_images(folder):
    for name, (size, box, *_) in GOLDEN.items():
        mode = "CMYK" if "cmyk" in name else "L" if "grey" in name else "RGB"
        turn = {"orientation": 6} if "rotated" in name else {}
        paint(folder / name, size, box, mode, quality=95, **turn)


def check_golden(data, classes=("cat", "dog")):
    """Every box is the white of its image, which is decoded upright."""
    assert data.classes == list(classes)
    samples = {sample.image_id.split("/")[-1]: sample for sample in data}
    assert sorted(samples) == sorted(GOLDEN)
    for name, (_, _, class_name, box) in GOLDEN.items():
        sample = samples[name]
        assert sample.boxes.tolist() == [box]
        assert sample.label == classes.index(class_name)
        assert sample.box_labels.tolist() == [sample.label]
        assert sample.boxes.dtype == np.float32 and sample.box_labels.dtype == np.int64
        x0, y0, x1, y1 = box
        white = np.zeros(sample.image.shape[:2], dtype=bool)
        white[y0:y1, x0:x1] = True
        np.testing.assert_array_equal(sample.image > 127, np.stack([white] * 3, axis=2))
    assert data.dropped_boxes == {}


def voc(path, objects, size=None, filename="any.jpg", head=""):
    """A Pascal-VOC XML; boxes are given as half-open edges and written 1-based and inclusive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sides = "" if size is None else f"<width>{size[0]}</width><height>{size[1]}</height>"
    items = "".join(
        f"<object><name>{name}</name><difficult>1</difficult><bndbox><xmin>{x0 + 1}</xmin>"
        f"<ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox><part><name>head</name>"
        "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"
        for name, (x0, y0, x1, y1) in objects
    )
    path.write_text(
        f"{head}<annotation><filename>{filename}</filename><size>{sides}<depth>3</depth></size>"
        f"{items}</annotation>",
        encoding="utf-8",
    )


def golden_xml(folder):
    for name, (size, box, class_name, _) in GOLDEN.items():
        voc(folder / f"{name.rpartition('.')[0]}.xml", [(class_name, box)], size)


def coco(path, images, annotations, categories=((18, "dog"), (3, "cat"))):
    """A COCO JSON of (id, name, size) and (image, category, x, y, w, h, further fields)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "info": {"year": 2017},
        "images": [
            {"id": i, "file_name": name} | ({} if size is None else dict(zip(SIDES, size)))  # noqa: B905
            for i, name, size in images
        ],
        "annotations": [
            {"id": i, "image_id": image, "category_id": category, "bbox": box} | further
            for i, (image, category, box, further) in enumerate(annotations)
        ],
        "categories": [{"id": i, "name": name} for i, name in categories],
    }
    path.write_text(json.dumps(content))
    return path


SIDES = ("width", "height")


def golden_coco(path):
    images, annotations = [], []
    for i, (name, (size, (x0, y0, x1, y1), class_name, _)) in enumerate(GOLDEN.items()):
        images.append((100 - i, name, size))
        category = {"cat": 3, "dog": 18}[class_name]
        annotations.append((100 - i, category, [x0, y0, x1 - x0, y1 - y0], {"iscrowd": 0}))
    return coco(path, images, annotations)


def table(path, *rows, header="path,label,x0,y0,x1,y1"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


class TestFrames:
    @pytest.mark.parametrize("orientation", TURNS)
    @pytest.mark.parametrize("extension", ["jpg", "png", "tif", "webp"])
    def test_a_box_in_the_stored_frame_turns_with_its_pixels(
        self, tmp_path, orientation, extension
    ):
        """48x32 is turned to 32x48 by orientations 5 to 8; the others keep their size, and
        there the stated size is that of the upright image."""
        size, box = (48, 32), (8, 16, 40, 24)
        lossless = {"lossless": True} if extension == "webp" else {}
        paint(tmp_path / f"a.{extension}", size, box, orientation=orientation, **lossless)
        voc(tmp_path / "a.xml", [("x", box)], size)
        sample = ImageFolder(tmp_path)[0]
        stored = np.zeros((32, 48), dtype=bool)
        stored[16:24, 8:40] = True
        upright = TURNS[orientation](stored)
        np.testing.assert_array_equal(sample.image[..., 1] > 127, upright)
        covered = np.zeros_like(upright)
        x0, y0, x1, y1 = sample.boxes[0].astype(int)
        covered[y0:y1, x0:x1] = True
        np.testing.assert_array_equal(covered, upright if orientation > 4 else stored)

    @pytest.mark.parametrize("orientation", TURNS)
    def test_a_box_in_the_shown_frame_stays(self, orientation):
        boxes = [[1.5, 2, 3, 4.25]]
        shown = (30, 40)
        for stated in (None, shown):
            assert upright_boxes(boxes, stated, shown, orientation).tolist() == boxes

    def test_another_scale_of_the_same_aspect(self):
        # 500x375 and 1000x750; then the stored 750x1000 of a turned image, at half its size.
        boxes = [[100, 50, 200, 75]]
        assert upright_boxes(boxes, (500, 375), (1000, 750)).tolist() == [[200, 100, 400, 150]]
        turned = upright_boxes(boxes, (500, 375), (750, 1000), orientation=6)
        assert turned.tolist() == [[750 - 150, 200, 750 - 100, 400]]
        # 0.9% off one aspect: each axis by its own scale.
        np.testing.assert_allclose(
            upright_boxes(boxes, (1000, 991), (500, 500)), [[50, 50 / 1.982, 100, 75 / 1.982]]
        )

    @pytest.mark.parametrize("stated", [(375, 500), (500, 380), (1, 1), (10**8, 1)])
    def test_refuses_the_size_of_another_image(self, stated):
        with pytest.raises(ImageError, match=f"is 500x375, .* {stated[0]}x{stated[1]}; put"):
            upright_boxes([[0, 0, 1, 1]], stated, (500, 375), orientation=3)

    def test_flaws(self):
        nan, inf, size = float("nan"), float("inf"), (8, 6)
        reasons = {
            (nan, 0, 1, 1): "not finite",
            (0, 0, inf, 1): "not finite",
            (3, 0, 2, 1): "reversed",
            (0, 3, 1, 2): "reversed",
            (2, 0, 2, 1): "without area",
            (0, 2, 1, 2): "without area",
            (8, 0, 9, 1): "outside the image",
            (0, 6, 1, 7): "outside the image",
            (-2, 0, 0, 1): "outside the image",
            (0, -2, 1, 0): "outside the image",
            (-2, -2, 0.5, 0.5): None,
            (7.5, 5.5, 99, 99): None,
        }
        assert {box: flaw(box, size) for box in reasons} == reasons

    @pytest.mark.parametrize("stated", [(20, 10), None])
    def test_flawed_boxes_are_dropped_and_counted_and_others_cut(self, tmp_path, stated):
        paint(tmp_path / "a.png")
        flawed = [(5, 5, 2, 9), (5, 5, 5, 9), (20, 0, 24, 4), (float("nan"), 0, 5, 5)]
        voc(tmp_path / "a.xml", [("x", b) for b in [*flawed, (-3, 2, 30, 4), (1, 1, 2, 2)]], stated)
        data = ImageFolder(tmp_path)
        known = {"reversed": 1, "without area": 1, "not finite": 1}
        outside = {"outside the image": 1}
        assert data.dropped_boxes == (known if stated is None else known | outside)
        for _ in range(2):  # not counted twice
            assert data[0].boxes.tolist() == [[0, 2, 20, 4], [1, 1, 2, 2]]
            assert data[0].box_labels.tolist() == [0, 0]
            assert data.dropped_boxes == known | outside
        assert Subset(data, [0]).dropped_boxes == known | outside
        assert Subset(data, []).dropped_boxes == Subset(range_data(), [0]).dropped_boxes == {}

    def test_an_image_of_another_size_is_unusable_and_others_are_not(self, tmp_path):
        for name in "ab":
            paint(tmp_path / f"{name}.png")
            voc(
                tmp_path / f"{name}.xml",
                [("x", (0, 0, 2, 2))],
                {"a": (20, 15), "b": (40, 20)}[name],
            )
        data = ImageFolder(tmp_path)
        with pytest.raises(ImageError, match=r"^image '.*a\.png' is 20x10, .* image of 20x15; put"):
            data[0]
        assert data[1].boxes.tolist() == [[0, 0, 1, 1]]


def range_data():
    class Data:
        name, classes = "data", []

        def __len__(self):
            return 1

    return Data()


class TestSample:
    def test_own_boxes(self):
        boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
        labels = np.array([1, -1, 1])
        image = np.zeros((2, 2, 3), dtype=np.uint8)
        assert Sample(image, 1, boxes, "a", labels).own_boxes.tolist() == boxes[[0, 2]].tolist()
        assert Sample(image, 2, boxes, "a", labels).own_boxes.shape == (0, 4)
        assert Sample(image, None, boxes, "a", labels).own_boxes.shape == (0, 4)
        # Four fields, as single-class data has them: every box is of the image's class.
        assert Sample(image, 1, boxes, "a").own_boxes is boxes
        assert Sample(image, None, boxes, "a").own_boxes.shape == (0, 4)


class TestVocGolden:
    def test_beside_the_images(self, tmp_path):
        golden_images(tmp_path)
        golden_xml(tmp_path)
        check_golden(ImageFolder(tmp_path))

    @pytest.mark.parametrize("place", ["Annotations", "annotations", "Annotations/CLS-LOC/val"])
    def test_in_an_annotation_folder(self, tmp_path, place):
        golden_images(tmp_path)
        golden_xml(tmp_path / place)
        check_golden(open_data(tmp_path))

    def test_voc_2012(self, tmp_path):
        root = tmp_path / "VOC2012"
        golden_images(root / "JPEGImages")
        golden_xml(root / "Annotations")
        paint(root / "SegmentationClass/000.png")
        paint(root / "JPEGImages/train.jpg")
        lists = root / "ImageSets/Main"
        check_all = ImageFolder(root)
        assert len(check_all) == 4 and check_all.labels.count(None) == 1
        lists.mkdir(parents=True)
        (lists / "val.txt").write_text(
            "\n".join(n.rpartition(".")[0] for n in GOLDEN) + "\n", "utf-8"
        )
        (lists / "train.txt").write_text("train\n")
        check_golden(ImageFolder(root))
        assert [s.image_id for s in ImageFolder(root, split="train")] == ["JPEGImages/train.jpg"]
        assert len(ImageFolder(root / "JPEGImages")) == 4
        assert ImageFolder(root / "JPEGImages").classes == ["cat", "dog"]

    @pytest.mark.parametrize("opened", ["", "Data/CLS-LOC", "Data/CLS-LOC/val"])
    def test_imagenet(self, tmp_path, opened):
        """Its own layout: validation images lie flat, and the XML has their WordNet id."""
        root = tmp_path / "ILSVRC"
        for i, wnid in enumerate(("n01443537", "n01440764", "n01443537"), start=1):
            name = f"ILSVRC2012_val_{i:08}"
            paint(root / f"Data/CLS-LOC/val/{name}.JPEG", format="JPEG")
            voc(root / f"Annotations/CLS-LOC/val/{name}.xml", [(wnid, (i, 2, 9, 9))], (20, 10))
        for wnid in ("n01440764", "n01443537"):
            paint(root / f"Data/CLS-LOC/train/{wnid}/{wnid}_1.JPEG", format="JPEG")
            voc(root / f"Annotations/CLS-LOC/train/{wnid}/{wnid}_1.xml", [(wnid, (0, 0, 5, 5))])
        paint(root / "Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG", format="JPEG")
        (root / "ImageSets").mkdir()
        val = ImageFolder(root / opened)
        assert val.labels == [1, 0, 1]
        assert val.classes == ["n01440764", "n01443537"]
        assert [sample.boxes[0, 0] for sample in val] == [1, 2, 3]
        if not opened.endswith("val"):
            train = ImageFolder(root / opened, split="train")
            assert (train.labels, train.classes) == ([0, 1], val.classes)
            assert train[0].boxes.tolist() == [[0, 0, 5, 5]]
        assert ImageFolder(root / "Data/CLS-LOC/test").labels == [None]
        mapped = ImageFolder(root / opened, label_map="imagenet-1k")
        assert (mapped.labels, mapped.classes[:2]) == ([1, 0, 1], ["tench", "goldfish"])


class TestVoc:
    def test_class_folders(self, tmp_path):
        """Images and annotations of one name in several folders go together by folder."""
        for name in ("cat", "dog", "emu"):
            paint(tmp_path / "photos" / name / "1.png")
        for i, name in enumerate(("cat", "dog")):
            objects = [(name, (i, 0, 5, 5)), ("tree", (6, 6, 9, 9))]
            voc(tmp_path / "photos/Annotations" / name / "1.xml", objects)
        data = ImageFolder(tmp_path / "photos")
        assert (data.classes, data.labels) == (["cat", "dog", "emu"], [0, 1, 2])
        assert [sample.boxes.tolist() for sample in data] == [
            [[0, 0, 5, 5], [6, 6, 9, 9]],
            [[1, 0, 5, 5], [6, 6, 9, 9]],
            [],
        ]
        assert [sample.box_labels.tolist() for sample in data] == [[0, -1], [1, -1], []]
        assert data[0].own_boxes.tolist() == [[0, 0, 5, 5]]

    def test_beside_comes_before_apart(self, tmp_path):
        paint(tmp_path / "a.png")
        voc(tmp_path / "a.xml", [("x", (1, 1, 2, 2))])
        voc(tmp_path / "Annotations/a.xml", [("x", (3, 3, 4, 4))])
        assert ImageFolder(tmp_path)[0].boxes.tolist() == [[1, 1, 2, 2]]

    def test_of_equal_names_only_one_can_be_meant(self, tmp_path):
        for name in ("cat", "dog"):
            paint(tmp_path / name / "1.png")
        voc(tmp_path / "Annotations/1.xml", [("x", (1, 1, 2, 2))])
        assert [len(sample.boxes) for sample in ImageFolder(tmp_path)] == [0, 0]
        voc(tmp_path / "Annotations/a/cat/1.xml", [("x", (1, 1, 2, 2))])
        voc(tmp_path / "Annotations/b/cat/1.xml", [("x", (1, 1, 2, 2))])
        with pytest.raises(ValueError, match=r"a/cat/1.xml' and .*b/cat/1.xml' both fit '1.png'"):
            ImageFolder(tmp_path)

    def test_labels_of_flat_images(self, tmp_path):
        """Where the objects are of one class it is the image's."""
        objects = {
            "a": [("dog", (0, 0, 2, 2)), ("dog", (2, 2, 4, 4))],
            "b": [("dog", (0, 0, 2, 2)), ("cat", (2, 2, 4, 4))],
            "c": [("", (0, 0, 2, 2))],
            "d": [("cat", (4, 4, 2, 2))],
        }
        for name, items in objects.items():
            paint(tmp_path / f"{name}.png")
            voc(tmp_path / f"{name}.xml", items)
        paint(tmp_path / "e.png")
        data = ImageFolder(tmp_path)
        assert (data.classes, data.labels) == (["cat", "dog"], [1, None, None, 0, None])
        assert [sample.box_labels.tolist() for sample in data] == [[1, 1], [1, 0], [-1], [], []]

    def test_a_folder_called_images_is_no_class(self, tmp_path):
        for split in ("train", "val"):
            paint(tmp_path / split / "images/a.png")
            voc(tmp_path / split / "images/a.xml", [("dog", (0, 0, 2, 2))])
        data = ImageFolder(tmp_path)
        assert (data.classes, data.labels, data[0].image_id) == (["dog"], [0], "val/images/a.png")

    def test_reads_edges_and_size(self, tmp_path):
        (tmp_path / "a.xml").write_text(
            "<annotation><size><width>7.0</width><height> 9 </height></size><object><name> a b "
            "</name><bndbox><xmax>3.5</xmax><xmin>1</xmin><ymin>2</ymin><ymax>2</ymax></bndbox>"
            "</object></annotation>"
        )
        annotation = read_voc(tmp_path / "a.xml")
        assert annotation == ((("a b", (0, 1, 3.5, 2), False),), (7, 9), (), None)

    @pytest.mark.parametrize("size", [None, (0, 0), (0, 10), ("nan", 10), (1e400, 5), (-20, 10)])
    def test_an_impossible_size_is_not_stated(self, tmp_path, size):
        voc(tmp_path / "a.xml", [], size)
        assert read_voc(tmp_path / "a.xml").size is None

    def test_filename_is_not_followed(self, tmp_path):
        paint(tmp_path / "a.png")
        voc(tmp_path / "a.xml", [("x", (0, 0, 2, 2))], filename="../../etc/passwd")
        assert ImageFolder(tmp_path)[0].image_id == "a.png"

    def test_names_stay_text(self, tmp_path):
        paint(tmp_path / "<b>&'\".png")
        name = "&lt;script&gt;alert(1)&lt;/script&gt; 'q' ü"
        voc(tmp_path / "<b>&'\".xml", [(name, (0, 0, 2, 2))])
        data = ImageFolder(tmp_path)
        assert data.classes == ["<script>alert(1)</script> 'q' ü"]
        assert (data[0].image_id, data[0].label) == ("<b>&'\".png", 0)

    def refused(self, path, content, *words):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ValueError) as caught:
            read_voc(path)
        message = str(caught.value)
        assert "\n" not in message and len(message) < 400
        for word in (repr(str(path)), *words):
            assert word in message

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
    def test_refuses_entities(self, tmp_path, encoding):
        """Billion laughs would be 3 GB; both stop at the document type."""
        laughs = "".join(
            f'<!ENTITY lol{i} "{f"&lol{i - 1};" * 10 if i else "lol"}">' for i in range(10)
        )
        secret = tmp_path / "secret.txt"
        secret.write_text("secret")
        start = time.process_time()  # of this process alone
        for entities in (laughs, f'<!ENTITY lol9 SYSTEM "{secret.as_uri()}">'):
            bomb = (
                f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [{entities}]>'
                "<annotation><object><name>&lol9;</name></object></annotation>"
            )
            self.refused(tmp_path / "a.xml", bomb.encode(encoding), "document type", "DOCTYPE")
        dtd = '<!DOCTYPE annotation SYSTEM "http://localhost/a.dtd"><annotation/>'
        self.refused(tmp_path / "a.xml", dtd, "document type")
        assert time.process_time() - start < 1

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", ("not a readable XML",)),
            ("hello", ("not a readable XML", "line 1")),
            ("<annotation>\n<object>", ("not a readable XML", "line 2")),
            ("<annotation>&nbsp;</annotation>", ("not a readable XML", "line 1")),
            ("<?xml version='1.0' encoding='x'?><annotation/>", ("not a readable XML",)),
            ("<svg/>", ("must be a Pascal VOC XML with the root 'annotation', got 'svg'",)),
            (
                "<annotation><size><width>w</width></size></annotation>",
                ("size/width must be a number, got 'w'",),
            ),
            (b"<annotation>" + b" " * 2**24, ("16777216 bytes",)),
            (b"<a>" * 100_000, ("not a readable XML",)),
            (b"\xff\xfe\x00\x01", ("not a readable XML",)),
        ],
    )
    def test_refuses_what_is_malformed(self, tmp_path, content, words):
        self.refused(tmp_path / "a.xml", content, *words)

    def test_deep_nesting_does_no_harm(self, tmp_path):
        (tmp_path / "a.xml").write_text(
            "<annotation>" + "<a>" * 100_000 + "</a>" * 100_000 + "</annotation>"
        )
        assert read_voc(tmp_path / "a.xml") == ((), None, (), None)

    def test_refuses_where_it_is_opened(self, tmp_path):
        paint(tmp_path / "a.png")
        (tmp_path / "a.xml").write_text("<annotation>")
        with pytest.raises(ValueError, match=r"a\.xml' is not a readable XML"):
            open_data(tmp_path)


class TestCocoGolden:
    @pytest.mark.parametrize("folder", ["val2017", "images/val2017", "images", "."])
    def test_folders_of_images(self, tmp_path, folder):
        golden_images(tmp_path / folder)
        golden_coco(tmp_path / "annotations/instances_val2017.json")
        data = open_data(tmp_path / "annotations/instances_val2017.json")
        check_golden(data)
        assert data.name == "instances_val2017"
        assert [sample.image_id for sample in data] == list(GOLDEN)

    @pytest.mark.parametrize("folder", [".", "images", "val2017"])
    def test_beside_the_images(self, tmp_path, folder):
        golden_images(tmp_path / folder)
        check_golden(CocoImages(golden_coco(tmp_path / "instances_val2017.json")))

    def test_opened_from_its_own_folder(self, tmp_path, monkeypatch):
        golden_images(tmp_path / "images")
        golden_coco(tmp_path / "annotations/a.json")
        monkeypatch.chdir(tmp_path / "annotations")
        check_golden(open_data("a.json"))


class TestCoco:
    def test_crowds_labels_and_images_without_boxes(self, tmp_path):
        for name in "abcd":
            paint(tmp_path / f"{name}.png")
        data = CocoImages(
            coco(
                tmp_path / "x.json",
                [(i, f"{name}.png", None) for i, name in enumerate("abcd")],
                [
                    (0, 3, [1, 2, 3, 4], {}),
                    (0, 3, [0, 0, 20, 10], {"iscrowd": 1}),
                    (1, 3, [1.25, 2.5, 3, 4], {"iscrowd": 0}),
                    (1, 18, [5, 5, 1e9, 1e9], {}),
                    (2, 18, [5, 5, -1, 1], {}),
                    (2, 18, [5, 5, 0, 1], {}),
                    (2, 18, [float("nan"), 5, 1, 1], {}),
                    (2, 18, [1e308, 5, 1e308, 1], {}),
                ],
            )
        )
        assert (data.classes, data.labels) == (["cat", "dog"], [0, None, 1, None])
        assert [sample.boxes.tolist() for sample in data] == [
            [[1, 2, 4, 6]],
            [[1.25, 2.5, 4.25, 6.5], [5, 5, 20, 10]],
            [],
            [],
        ]
        assert data[1].box_labels.tolist() == [0, 1]
        assert data.dropped_boxes == {
            "crowd": 1, "reversed": 1, "without area": 1, "not finite": 2
        }  # fmt: skip

    def test_paths_below_and_names_as_ids(self, tmp_path):
        paint(tmp_path / "images/deep/a b.png")
        data = CocoImages(
            coco(
                tmp_path / "x.json",
                [("one", "./deep/a b.png", None)],
                [("one", 3, [0, 0, 2, 2], {})],
            )
        )
        assert data[0].image_id == "deep/a b.png"
        assert data[0].label == 0

    def test_a_missing_image_fails_alone(self, tmp_path):
        paint(tmp_path / "b.png")
        data = CocoImages(coco(tmp_path / "x.json", [(1, "a.png", None), (2, "b.png", None)], []))
        with pytest.raises(ImageError, match=r"a\.png' does not exist"):
            data[0]
        before = data.fingerprint()
        assert data[1].boxes.shape == (0, 4)
        paint(tmp_path / "a.png")
        assert data.fingerprint() != before

    def test_refuses_when_all_are_missing(self, tmp_path):
        with pytest.raises(ValueError, match=r"no image of .*, such as 'a.png', lies in '.*/x',"):
            CocoImages(coco(tmp_path / "x.json", [(1, "a.png", None)], []))
        with pytest.raises(ValueError, match="lists no images"):
            CocoImages(coco(tmp_path / "x.json", [], []))
        with pytest.raises(ValueError, match="y.json' is not a file"):
            CocoImages(tmp_path / "y.json")

    @pytest.mark.parametrize(
        "name", ["../a.png", "/etc/passwd", "b/../../a.png", "a\0.png", "", "."]
    )
    def test_refuses_paths_that_lead_elsewhere(self, tmp_path, name):
        paint(tmp_path / "a.png")
        path = coco(tmp_path / "images/x.json", [(1, "fine.png", None), (2, name, None)], [])
        with pytest.raises(ValueError, match=r"x.json', images\[1\]: .* relative to its folder"):
            CocoImages(path)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: c.pop("categories"), "lacks one of COCO's lists images, annotations, cat"),
            (lambda c: c.update(images={}), "lacks one of COCO's lists"),
            (lambda c: c["images"].append(7), r"images\[1\]: 'file_name' is missing"),
            (lambda c: c["images"].append(c["images"][0]), r"images\[1\]: 'a.png' is listed twice"),
            (lambda c: c["images"][0].update(id=[1]), r"images\[0\]: 'id' .* got \[1\]"),
            (lambda c: c["images"][0].update(width="9"), r"images\[0\]: 'width' .* got '9'"),
            (lambda c: c["images"][0].update(file_name=None), r"'file_name' .* got None"),
            (lambda c: c["images"][0].update(file_name="\ud800"), r"'file_name' is missing or mal"),
            (lambda c: c["categories"][0].pop("name"), r"categories\[0\]: 'name' is missing"),
        ],
    )
    def test_refuses_what_is_malformed(self, tmp_path, change, words):
        path = coco(tmp_path / "x.json", [(1, "a.png", (20, 10))], [(1, 3, [0, 0, 2, 2], {})])
        read_coco(path)
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=words) as caught:
            read_coco(path)
        assert str(caught.value).startswith(repr(str(path))) and "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "line 1: not JSON"),
            (b'{\n"images": [,]}', "line 2: not JSON"),
            (b"[" * 200_000, "not a readable JSON"),
            (b"1" * 5000, "not a readable JSON"),
            (b'{"images":\n\n"\xff"}', "line 3: not UTF-8"),
            (b"[]", "lacks one of COCO's lists"),
            (b"null", "lacks one of COCO's lists"),
        ],
    )
    def test_refuses_what_is_no_json(self, tmp_path, content, words):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"x.json'.*{words}"):
            open_data(tmp_path / "x.json")

    def test_refuses_a_huge_file(self, tmp_path):
        with (tmp_path / "x.json").open("wb") as file:
            file.truncate((1 << 30) + 1)  # takes no room on disk
        with pytest.raises(ValueError, match=r"x.json' is larger than 1073741824 bytes; split it"):
            open_data(tmp_path / "x.json")

    def test_label_map(self, tmp_path):
        paint(tmp_path / "a.png")
        path = coco(
            tmp_path / "x.json",
            [(1, "a.png", None)],
            [(1, 3, [0, 0, 2, 2], {}), (1, 18, [2, 2, 2, 2], {})],
        )
        (tmp_path / "names.txt").write_text("emu\ndog\n")
        data = CocoImages(path, label_map=tmp_path / "names.txt")
        assert (data.classes, data.labels) == (["emu", "dog"], [None])
        assert data[0].box_labels.tolist() == [-1, 1]
        with pytest.raises(
            ValueError, match="no category of .*, such as 'cat', is among the label"
        ):
            CocoImages(path, label_map="imagenet-1k")


class TestTable:
    def test_golden(self, tmp_path):
        """Without a stated size boxes are in the frame of the upright image."""
        golden_images(tmp_path)
        rows = [
            f'"{name}",{class_name},{",".join(map(str, box))}'
            for name, (_, _, class_name, box) in GOLDEN.items()
        ]
        check_golden(open_data(table(tmp_path / "boxes.csv", *rows)))

    def test_rows_of_one_image_blank_fields_and_order(self, tmp_path):
        for name in ("a", "b", "c, d"):
            paint(tmp_path / f"{name}.png")
        data = TableImages(
            table(
                tmp_path / "x.csv",
                "7,b.png,dog,0,0,2.5,2",
                '8,"c, d.png",,,,,',
                "9,a.png,cat,,,,",
                "",
                "7,./b.png,cat,1e0, 2 ,3,4",
                "7,b.png,,5,5,4,6",
                "7,b.png,dog,50,5,60,6",
                header="id, path ,label,x0,y0,x1,y1",
            )
        )
        assert [sample.image_id for sample in data] == ["b.png", "c, d.png", "a.png"]
        assert (data.classes, data.labels) == (["cat", "dog"], [None, None, 0])
        assert data[0].boxes.tolist() == [[0, 0, 2.5, 2], [1, 2, 3, 4]]
        assert data[0].box_labels.tolist() == [1, 0]
        assert data[2].boxes.shape == (0, 4)
        assert data.dropped_boxes == {"reversed": 1, "outside the image": 1}
        assert len(open_data(tmp_path / "x.csv", size=2)) == 2

    def test_clusters(self, tmp_path):
        for name in ("a", "b", "c"):
            paint(tmp_path / f"{name}.png")
        rows = ("a.png,cat,,,,,video 1", "b.png,cat,,,,,", "c.png,dog,,,,, video 1")
        header = "path,label,x0,y0,x1,y1,cluster"
        data = TableImages(table(tmp_path / "x.csv", *rows, header=header))
        assert [sample.cluster for sample in data] == ["video 1", None, "video 1"]
        without = TableImages(table(tmp_path / "y.csv", *(row[:13] for row in rows)))
        assert [sample.cluster for sample in without] == [None] * 3
        assert data.fingerprint() != without.fingerprint()

    def test_an_image_has_one_cluster(self, tmp_path):
        paint(tmp_path / "a.png")
        path = table(
            tmp_path / "x.csv",
            "a.png,cat,0,0,1,1,p1",
            "a.png,cat,0,0,2,2,p2",
            header="path,label,x0,y0,x1,y1,cluster",
        )
        with pytest.raises(
            ValueError, match="line 3: cluster of 'a.png' must be the same .*, got 'p1' and 'p2'"
        ):
            TableImages(path)

    def test_indices_are_labels_themselves(self, tmp_path):
        paint(tmp_path / "a.png")
        paint(tmp_path / "b.png")
        path = table(tmp_path / "x.CSV", "a.png,7,,,,", "b.png,003.0,,,,")  # pandas writes 3.0
        data = open_data(path)
        assert (data.labels, data.classes) == ([7, 3], [str(i) for i in range(8)])
        assert open_data(path, label_map="imagenet-1k").classes[7] == "cock"

    def test_names_by_a_label_map(self, tmp_path):
        paint(tmp_path / "a.png")
        path = table(tmp_path / "x.csv", "a.png,n01443537,,,,", "a.png,1,0,0,1,1")
        data = open_data(path, label_map="imagenet-1k")
        assert (data.labels, data[0].box_labels.tolist()) == ([1], [1])
        table(path, "a.png,1,,,,", "a.png,1000,,,,")
        with pytest.raises(ValueError, match="x.csv', line 3: '1000' is not among the label map"):
            open_data(path, label_map="imagenet-1k")

    def test_byte_order_mark_and_windows_line_ends(self, tmp_path):
        paint(tmp_path / "a.png")
        (tmp_path / "x.csv").write_bytes(
            b"\xef\xbb\xbfpath,label,x0,y0,x1,y1\r\na.png,\xc3\xbc,1,2,3,4\r\n"
        )
        data = open_data(tmp_path / "x.csv")
        assert (data.classes, data[0].boxes.tolist()) == (["ü"], [[1, 2, 3, 4]])

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            (("a.png,x,1,2,3",), "line 2: 5 fields, not 6"),
            (("/etc/passwd,x,,,,",), "line 2: path: '/etc/passwd' must be the path"),
            (("a.png,x,,,,", "../a.png,x,,,,"), "line 3: path: '../a.png' must be"),
            ((",x,,,,",), "line 2: path: '' must be"),
            (("a.png,-1,,,,",), "line 2: label '-1' is negative"),
            (("a.png,3,,,,", "a.png,x,,,,"), "'3' in line 2 is a number, but 'x' in line 3 a name"),
            (("a.png,2000000,,,,",), "line 2: label 2000000 is not below 1000000"),
            ((f"a.png,{'9' * 5000},,,,",), "line 2: label 9{40} is not below 1000000"),
            (('a.png,"x,,,,',), "line 2: unexpected end of data"),
            (("a.png," + "x" * 200_000 + ",,,,",), "line 2: field larger than field limit"),
            ((), "lists no images"),
        ],
    )
    def test_refuses_what_is_malformed(self, tmp_path, rows, words):
        paint(tmp_path / "a.png")
        path = table(tmp_path / "x.csv", *rows)
        with pytest.raises(ValueError, match=rf"x.csv'.*{words}") as caught:
            open_data(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500

    @pytest.mark.parametrize(
        "header", ["", "path,label", "path,label,x0,y0,x1,x1,y1", "a.png,x,,,,"]
    )
    def test_refuses_a_header_without_the_columns(self, tmp_path, header):
        path = table(tmp_path / "x.csv", "a.png,x,,,,", header=header)
        with pytest.raises(
            ValueError, match="line 1: the first line must name the columns path,la"
        ):
            read_table(path)

    def test_refuses_what_is_not_utf_8(self, tmp_path):
        (tmp_path / "x.csv").write_bytes(b"path,label,x0,y0,x1,y1\n\xfc.png,x,,,,\n")
        with pytest.raises(ValueError, match="x.csv', line 2: not UTF-8"):
            open_data(tmp_path / "x.csv")


class TestMalformed:
    """What is malformed of an annotation is left out and counted; all else stays."""

    GOOD = {"image_id": 1, "category_id": 3, "bbox": [0, 0, 2, 2]}

    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            ({"image_id": 1, "category_id": 3}, "'bbox' is missing or malformed, got None"),
            ({"bbox": []}, r"'bbox' must be 4 numbers, got \[\]"),
            ({"bbox": [1, 2, 3]}, r"'bbox' must be 4 numbers, got \[1, 2, 3\]"),
            ({"bbox": [1, 2, 3, None]}, r"'bbox' must be 4 numbers, got \[1, 2, 3, None\]"),
            ({"bbox": [1, 2, 3, 10**400]}, "'bbox' must be 4 numbers"),
            ({"bbox": "none"}, "'bbox' is missing or malformed, got 'none'"),
        ],
    )
    def test_a_coco_box_loses_its_box_alone(self, tmp_path, bad, reason):
        paint(tmp_path / "a.png")
        path = coco(tmp_path / "x.json", [(1, "a.png", None)], [])
        content = json.loads(path.read_text())
        bad = bad if "image_id" in bad else {**self.GOOD, **bad}
        content["annotations"] = [self.GOOD, bad, {**self.GOOD, "bbox": [3, 3, 4, 4]}]
        path.write_text(json.dumps(content))
        message = rf"^x: 1 malformed .* such as '.*x\.json', annotations\[1\]: {reason}"
        with pytest.warns(UserWarning, match=message):
            data = CocoImages(path)
        assert data[0].boxes.tolist() == [[0, 0, 2, 2], [3, 3, 7, 7]]
        assert (data.labels, data.dropped_boxes) == ([0], {"malformed": 1})

    @pytest.mark.parametrize(
        ("bad", "reason", "counted"),
        [
            ({"image_id": 9}, "'image_id' 9 is not listed", {}),
            ({"image_id": "1"}, "'image_id' '1' is not listed", {}),
            ({"image_id": None}, "'image_id' is missing or malformed, got None", {}),
            ({"category_id": 9}, "'category_id' 9 is not listed", {"malformed": 1}),
            ({"category_id": True}, "'category_id' is missing or malformed", {"malformed": 1}),
            ({"iscrowd": "yes"}, "'iscrowd' is missing or malformed", {"malformed": 1}),
            ("annotation", "'image_id' is missing or malformed", {}),
        ],
    )
    def test_a_coco_orphan_is_left_out(self, tmp_path, bad, reason, counted):
        """Without a say in the label of its image."""
        for name in "ab":
            paint(tmp_path / f"{name}.png")
        path = coco(tmp_path / "x.json", [(1, "a.png", None), (2, "b.png", None)], [])
        content = json.loads(path.read_text())
        bad = bad if isinstance(bad, str) else {**self.GOOD, **bad}
        content["annotations"] = [bad, self.GOOD, {**self.GOOD, "image_id": 2}]
        path.write_text(json.dumps(content))
        message = rf"1 malformed annotations are .* such as .* annotations\[0\]: {reason}"
        with pytest.warns(UserWarning, match=message):
            data = open_data(path)
        assert [sample.boxes.tolist() for sample in data] == [[[0, 0, 2, 2]]] * 2
        assert (data.labels, data.dropped_boxes) == ([0, 0], counted)
        with pytest.warns(UserWarning, match="1 malformed"):
            assert open_data(path, size=1).dropped_boxes in (counted, {})

    def test_a_coco_file_of_orphans_alone_is_refused(self, tmp_path):
        """Ids that are text in one list and numbers in the other fit nowhere."""
        paint(tmp_path / "a.png")
        path = coco(tmp_path / "x.json", [(1, "a.png", None)], [("1", 3, [0, 0, 2, 2], {})] * 3)
        with pytest.raises(
            ValueError,
            match=r"not one annotation of .*x\.json' can be used: .*'image_id' '1'",
        ):
            CocoImages(path)

    @pytest.mark.parametrize(
        ("box", "reason"),
        [
            ("", "bndbox/xmin must be a number, got None"),
            ("<bndbox/>", "bndbox/xmin must be a number, got None"),
            ("<bndbox><xmin>1</xmin><ymin>one</ymin></bndbox>", "bndbox/ymin .* got 'one'"),
            (
                "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax/></bndbox>",
                "bndbox/ymax must be a number, got ''",
            ),
        ],
    )
    def test_a_voc_object_without_a_box(self, tmp_path, box, reason):
        for name in "ab":
            paint(tmp_path / f"{name}.png")
            (tmp_path / f"{name}.xml").write_text(
                f"<annotation><object><name>cat</name>{box}</object><object><name>cat</name>"
                "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
                "</object></annotation>"
            )
        with pytest.warns(UserWarning, match=rf"2 malformed .* such as '.*a\.xml': {reason}"):
            data = ImageFolder(tmp_path)
        assert [sample.boxes.tolist() for sample in data] == [[[0, 0, 2, 2]]] * 2
        assert (data.labels, data.dropped_boxes) == ([0, 0], {"malformed": 2})

    @pytest.mark.parametrize("box", ["1,,3,4", "1,2,3,four", "1,2,3,0x4", ",,,4"])
    def test_a_table_row_with_half_a_box(self, tmp_path, box):
        for name in "ab":
            paint(tmp_path / f"{name}.png")
        path = table(tmp_path / "x.csv", "a.png,cat,0,0,2,2", f"b.png,dog,{box}", "b.png,dog,,,,")
        message = r"1 malformed .* such as '.*x\.csv', line 3: a box must be 4 numbers, or 4 blank"
        with pytest.warns(UserWarning, match=message):
            data = open_data(path)
        assert [sample.boxes.tolist() for sample in data] == [[[0, 0, 2, 2]], []]
        assert (data.classes, data.labels) == (["cat", "dog"], [0, 1])
        assert data.dropped_boxes == {"malformed": 1}

    def test_a_table_row_with_too_few_fields(self, tmp_path):
        paint(tmp_path / "a.png")
        path = table(tmp_path / "x.csv", "a.png,cat,0,0,2,2", "a.png,dog,0,0,2", "a.png,cat,,,,")
        message = r"1 malformed .* such as '.*x\.csv', line 3: 5 fields, not 6"
        with pytest.warns(UserWarning, match=message):
            data = open_data(path)
        assert (data.classes, data.labels, len(data[0].boxes)) == (["cat"], [0], 1)


class TestFingerprint:
    def test_covers_annotations(self, tmp_path):
        paint(tmp_path / "a.png")
        prints = []
        for objects, size in [
            ([("cat", (0, 0, 2, 2))], (20, 10)),
            ([("cat", (0, 0, 2, 3))], (20, 10)),
            ([("cat", (0, 0, 2, 2))], (40, 20)),
            ([("cat", (0, 0, 2, 2))], None),
            ([("cat", (0, 0, 2, 2)), ("cat", (0, 0, 2, 2))], (20, 10)),
            ([("cat", (0, 0, 2, 2)), ("dog", (0, 0, 2, 2))], (20, 10)),
            ([("dog", (0, 0, 2, 2)), ("cat", (0, 0, 2, 2))], (20, 10)),
            ([], None),
        ]:
            voc(tmp_path / "a.xml", objects, size)
            prints.append(ImageFolder(tmp_path).fingerprint())
        assert len(set(prints)) == 8
        assert ImageFolder(tmp_path).fingerprint() == prints[-1]

    def test_covers_the_labels_of_a_map(self, tmp_path):
        paint(tmp_path / "5/a.png")
        plain, mapped = (ImageFolder(tmp_path, label_map=m) for m in (None, "imagenet-1k"))
        assert plain.fingerprint() != mapped.fingerprint()
