"""Finding images and their annotations in a tree of folders."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

__all__ = [
    "EXTENSIONS",
    "MASKS",
    "PHOTOGRAPHS",
    "annotation_folder",
    "find_files",
    "image_folders",
    "match_annotations",
    "subfolders",
]

#: File name endings of images, in lower case.
EXTENSIONS = (
    ".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm",
    ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
#: Folders that operating systems create, in lower case; they and hidden folders are skipped.
SYSTEM_FOLDERS = (
    "$recycle.bin", "#recycle", "#snapshot", "@__thumb", "@eadir", "@recycle", "__macosx",
    "lost+found", "system volume information",
)  # fmt: skip
#: Pascal VOC's folders of masks, in lower case.
MASKS = ("segmentationclass", "segmentationobject")
#: Names of folders of images that are not classes, in lower case.
PHOTOGRAPHS = ("images", "jpegimages")
#: Names of folders of annotations beside these, in lower case.
SIDECARS = (
    "annotations", *MASKS, "ground_truth", "groundtruth", "gt", "imagesets", "labels", "mask",
    "masks", "segmentations", "trimaps",
)  # fmt: skip
#: Folders of images whose annotations may lie beside them, in lower case.
IMAGE_FOLDERS = ("images", "jpegimages", "test", "train", "val")


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in a folder, with links to folders.

    Folders of the operating system, of annotations and of masks are left out, and so are links to a
    folder above.

    Raises:
        ValueError: if the folder cannot be read.
    """
    above = _folder_and_above(folder)
    try:
        with os.scandir(folder) as entries:
            others = [e.name for e in entries if not e.is_file(follow_symlinks=False)]
    except OSError as error:
        _refuse(error)
    names = [
        name
        for name in filter(_visible, others)
        if os.path.isdir(folder / name) and _identity(folder / name) not in above
    ]
    photographs = any(name.lower() in PHOTOGRAPHS for name in names)
    no_classes = SIDECARS if photographs else ("annotations", *MASKS)
    return sorted(name for name in names if name.lower() not in no_classes)


def image_folders(folder: Path) -> list[str]:
    """The :func:`subfolders` that hold images at any depth."""
    return [
        name
        for name in subfolders(folder)
        if next(_files(folder / name, EXTENSIONS), None) is not None
    ]


def find_files(folder: Path, endings: tuple[str, ...], *, deep: bool = True) -> list[Path]:
    """Files below a folder with certain name endings, sorted by path; hidden files are skipped.

    Links to folders are followed. Each folder is visited once, and no folder above is visited.

    Args:
        folder: where to search.
        endings: of the file names, in lower case.
        deep: search subfolders as well.

    Raises:
        ValueError: if a folder cannot be read, since files would be missing.
    """
    return sorted(_files(folder, endings, deep=deep), key=lambda path: path.as_posix())


def _files(folder: Path, endings: tuple[str, ...], *, deep: bool = True) -> Iterator[Path]:
    visited = _folder_and_above(folder)

    def is_new(path: str) -> bool:
        before = len(visited)
        visited.add(_identity(path))
        return len(visited) > before

    for parent, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        visible = sorted(name for name in folders if _visible(name)) if deep else ()
        folders[:] = [name for name in visible if is_new(os.path.join(parent, name))]
        for name in files:
            if _visible(name) and name.lower().endswith(endings):
                yield Path(parent, name)


def _folder_and_above(folder: Path) -> set[tuple[int, int]]:
    """Identities of a folder and all folders above it, by its path and by its real path."""
    paths = (Path(os.path.abspath(folder)), Path(os.path.realpath(folder)))
    return {_identity(place) for path in paths for place in (path, *path.parents)}


def _identity(path: str | Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        _refuse(error)
    return status.st_dev, status.st_ino


def annotation_folder(root: Path) -> Path | None:
    """Find the ``Annotations`` folder of a folder of images: inside it, beside it, or mirrored.

    ImageNet mirrors the layout of its images: ``Annotations/CLS-LOC/val`` belongs to
    ``Data/CLS-LOC/val``.
    """
    whole = Path(os.path.abspath(root))
    places = [whole]
    if whole.name.lower() in IMAGE_FOLDERS:
        places.append(whole.parent)
    for place in places:
        for name in ("Annotations", "annotations"):
            if (place / name).is_dir():
                return place / name
    if "Data" in whole.parts:
        depth = len(whole.parts) - whole.parts[::-1].index("Data")
        mirrored = Path(*whole.parts[: depth - 1], "Annotations", *whole.parts[depth:])
        return mirrored if mirrored.is_dir() else None
    return None


def match_annotations(images: Sequence[Path], folder: Path | None) -> dict[Path, Path]:
    """Find the XML file of each image: beside the image, or in an annotation folder.

    In the annotation folder it may lie at any depth. If several images have the same name, the
    folders of an annotation must be named like those of its image.

    Args:
        images: image files.
        folder: the annotation folder, if there is one.

    Returns:
        Image → XML file, for the images that have one.

    Raises:
        ValueError: if two annotations fit an image equally well.
    """
    beside = {
        path
        for parent in {image.parent for image in images}
        for path in find_files(parent, (".xml",), deep=False)
    }
    apart: defaultdict[str, list[Path]] = defaultdict(list)
    for path in [] if folder is None else find_files(folder, (".xml",)):
        apart[path.stem].append(path)
    stems = Counter(image.stem for image in images)
    matches = {}
    for image in images:
        if image.with_suffix(".xml") in beside:
            matches[image] = image.with_suffix(".xml")
            continue
        common = {path: _common_end(image.parent, path.parent) for path in apart[image.stem]}
        best = max(common.values(), default=0)
        fits = [path for path in common if common[path] == best]
        if not fits or (best == 0 and stems[image.stem] > 1):
            continue
        if len(fits) > 1:
            raise ValueError(
                f"annotations {str(fits[0])!r} and {str(fits[1])!r} both fit {image.name!r}; "
                "put them into folders with the names of the images' folders"
            )
        matches[image] = fits[0]
    return matches


def _common_end(first: Path, second: Path) -> int:
    """The number of folders that two paths share, counted from the last."""
    pairs = zip(reversed(first.parts), reversed(second.parts), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _refuse(error: OSError) -> NoReturn:
    raise ValueError(f"folder {str(error.filename)!r} cannot be read: {error.strerror}")


def _visible(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in SYSTEM_FOLDERS
