"""Why a container did not start, from the words of the runtimes; tests/container has real ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from harness.launch.container import why_no_image
from harness.run.ended import COPY, why_not_begun
from harness.site.site import Container

SITE = Container(runtime="singularity", image="/x.sif", binds=["/data:/inside"])


def told(folder: Path, text: str) -> str:
    """What is said of a run on node7 with this log."""
    (folder / "log.err").write_text(text)
    return why_not_begun(folder / "log.err", ["node7", "node7"], SITE, "/x.sif")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "FATAL:   container creation failed: mount source /data doesn't exist\n",
            "/data, which is bound into the container, does not exist on node7: make it, or take it out of",
        ),
        (
            "\x1b[91mERROR  : Failed to create user namespace: Operation not permitted\n",
            "node7 does not let users make user namespaces, which this singularity needs",
        ),
        (
            "FATAL:   image targets 'arm64', cannot run on 'amd64'\n",
            "the image /x.sif was built for arm64, and node7 is amd64",
        ),
        (
            "FATAL:   kernel reported a bad superblock for squashfs image partition\n",
            "the image /x.sif is damaged or incomplete",
        ),
        ("FATAL:   a sentence of tomorrow's version\n", "did not start on node7: a sentence of tomorrow's version"),
        (
            "singularity: cannot be started on node7 (No such file or directory)\n",
            "singularity is not on the PATH of node7: name the module that brings it",
        ),
        ("SyntaxError: future feature annotations is not defined\n", "(python3) is older than 3.8"),
    ],
)
def test_what_kept_it_from_starting_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    said = told(tmp_path, f"starting\n{text}monitor: more\n")
    assert sentence in said
    assert "\n" not in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    "text",
    [
        "ERROR: the data are wrong\n",
        "OSError: [Errno 28] No space left on device\n",
        "could not open image /a.png: no such file\n",
        "CRITICAL FATAL: x\n",
    ],
)
def test_what_a_training_prints_is_not_taken_for_the_container(tmp_path: Path, text: str) -> None:
    assert told(tmp_path, text) == ""


def test_without_a_log_nothing_is_said(tmp_path: Path) -> None:
    assert why_not_begun(tmp_path / "none", [], SITE, "/x.sif") == ""


def test_an_image_whose_copy_was_interrupted_is_told_and_what_only_the_runtime_can_judge_is_not(tmp_path: Path) -> None:
    image = tmp_path / "x.sif"
    head = struct.pack("<32s10s70xqq", b"", b"SIF_MAGIC\0", 128, 10_000)
    image.write_bytes(head)
    assert why_no_image(image) == f"is incomplete (128 B of 10.1 kB): {COPY}"
    for content in (head + bytes(10_000), b"hsqs", b""):
        image.write_bytes(content)
        assert why_no_image(image) == ""
    assert why_no_image(tmp_path) == "", "a sandbox"
