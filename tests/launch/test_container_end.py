"""Why a container did not start, from the words of the runtimes; tests/container has real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch.container import why_no_image
from harness.run.ended import why_not_begun
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hsqs", ""),
        (bytes(1080) + b"\x53\xef", ""),
        (b"", "is an empty file"),
        (bytes(32) + b"SIF_MAGIC\0", "is no image"),  # its header is incomplete
    ],
)
def test_files_that_no_runtime_can_start_are_told_from_those_that_it_can(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "x.sif").write_bytes(content)
    why = why_no_image(tmp_path / "x.sif")
    assert why.startswith(said) if said else why == ""


def test_a_sandbox_is_a_folder_with_a_system_in_it(tmp_path: Path) -> None:
    assert why_no_image(tmp_path).startswith("is a folder without bin and usr")
    (tmp_path / "usr").mkdir()
    assert why_no_image(tmp_path) == ""
