"""Every episode of the course has its parts in their order, and its reader can follow it: short sentences, pictures
with words, headings in order, colours with contrast, times that fit into a lesson."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from chromium import find_chromium
from episodes import HALF_DAYS, Episode, episodes

from harness.cli.commands import COMMANDS
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
CARD = ROOT / "docs" / "card.html"
ALL = pytest.mark.parametrize("episode", episodes(), ids=lambda episode: episode.number)
PAGES = [ROOT / "README.md", ROOT / "docs" / "before.md", *sorted((ROOT / "exercises").glob("exercise_*/*.md"))]
ORDER = ["Guess first", "Run", "You will see", "Look at", "questions", "Remember", "Next"]
MOST_WORDS = 20  # of a sentence
READ_WORDS = 130 * 5  # in five minutes, without what is folded
LEAST_CONTRAST = 4.5  # WCAG 2.1, level AA


def sections(episode: Episode) -> dict[str, str]:
    """The sections of the core by their headings; the first of lessons as `questions`."""
    parts = re.split(r"^## (.+)$", episode.core, flags=re.M)
    headed = list(zip(parts[1::2], parts[2::2], strict=True))
    named = [("questions" if re.match(r"\d\w: |Questions", name) else name, text) for name, text in headed]
    return dict(reversed(named))


def text_of(page: str) -> str:
    """What is written by a person: without blocks, tables, comments and code."""
    text = re.sub(r"<!-- (?:written|seen): .*?<!-- end -->|^```.*?^```|<[^>]+>", "\n\n", page, flags=re.S | re.M)
    text = re.sub(r"^\|.*$|^ {4}\S.*$|^#.*$|!\[.*?\]\(.*?\)", "\n", text, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))


def sentences(page: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n|\n(?=\d\. |- )", text_of(page)):
        yield from re.split(r"(?<=[.!?])\s+(?=\S)", " ".join(paragraph.split()))


@ALL
def test_it_has_each_part_in_its_order(episode: Episode) -> None:
    parts = sections(episode)
    assert [name for name in reversed(parts) if name in ORDER] == ORDER
    assert 2 <= len(episode.goals) <= 3 and f"<!-- written: time-{episode.number} -->" in episode.core
    assert re.search(r"^It needs .+\.", episode.core, re.M)
    (command,) = re.findall(r"^```bash\n(.*?)^```", parts["Run"], re.M | re.S)
    assert len(command.splitlines()) == 1
    assert re.search(r"<!-- seen: .*?-->\n\n.*?```text\n.+?\n```", parts["You will see"], re.S)
    assert re.search(r"^!\[.{40,}\]\(\S+\)$", parts["Look at"], re.M)
    assert 2 <= len(re.findall(r"^\d\. .*\?", parts["questions"].partition("<details>")[0], re.M)) <= 3
    folded = re.findall(r"<details><summary>(.+)</summary>", episode.core)
    assert {"Hint", "Answer", "For instructors"} <= set(folded)
    assert re.search(r"Ask: .*?Often wrong: ", episode.core, re.S)
    assert len(list(filter(None, sentences(parts["Remember"])))) == 3
    assert re.search(r"\]\(\S+\)", parts["Next"])


@ALL
def test_it_is_read_in_five_minutes_and_done_in_ten_to_thirty(episode: Episode) -> None:
    shown = re.sub(r"<details>.*?</details>", "", episode.core, flags=re.S)
    assert len(text_of(shown).split()) <= READ_WORDS
    assert {episode.minutes(cpu) in range(10, 31) for cpu in (True, False)} == {True}


def test_every_episode_of_the_workshop_is_in_a_half_day() -> None:
    beyond = {"1.7"}  # of a course at Jülich
    numbers = {one.number for one in episodes()}
    assert {name for names in HALF_DAYS for name in names} - {"break"} == numbers - beyond


@pytest.mark.parametrize("path", [one.path for one in episodes()], ids=lambda path: path.stem)
def test_its_sentences_are_short(path: Path) -> None:
    found = sentences(path.read_text(encoding="utf-8"))
    assert [each for each in found if len(each.split()) > MOST_WORDS] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_its_headings_are_in_order_and_its_pictures_have_words(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    levels = [len(found) for found in re.findall(r"^(#+) ", text, re.M)]
    assert levels[0] == 1 and 1 not in levels[1:]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [found for found in re.findall(r"!\[(.*?)\]\(", text) if len(found.split()) < 5] == []


def luminance(colour: str) -> float:
    """Of #rgb or #rrggbb, by WCAG 2.1."""
    digits = colour.lstrip("#")
    wide = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(wide[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def drawn_words(picture: Path) -> Iterator[tuple[str, str]]:
    """The colour of each text of a drawing, and that of the last rectangle below it."""
    below: list[tuple[float, float, float, float, str]] = [(0, 0, 1e9, 1e9, "#ffffff")]
    for each in ElementTree.parse(picture).iter():
        x, y = (float(each.get(name, 0)) for name in ("x", "y"))
        fill = each.get("fill", "#000000")
        if each.tag.endswith("rect") and fill.startswith("#"):
            below.append((x, y, x + float(each.get("width", 0)), y + float(each.get("height", 0)), fill))
        elif each.tag.endswith("text"):
            yield fill, next(b[4] for b in reversed(below) if b[0] <= x <= b[2] and b[1] <= y <= b[3])


def test_words_of_the_drawings_and_of_the_card_have_contrast() -> None:
    found = {word for name in ("paths", "column-row") for word in drawn_words(ROOT / f"docs/pictures/{name}.svg")}
    (style,) = re.findall(r"body \{(.*?)\}", CARD.read_text(encoding="utf-8"))
    found.add((re.findall(r"color: (#\w+)", style)[0], re.findall(r"background: (#\w+)", style)[0]))
    assert [pair for pair in found if contrast(*pair) < LEAST_CONTRAST] == []


def test_the_card_is_one_page_of_commands_that_exist(tmp_path: Path) -> None:
    typed = re.findall(r"<code>bash slurm\.sh ([\w-]+)", CARD.read_text(encoding="utf-8"))
    assert typed and [word for word in typed if not word.startswith("-") and word not in COMMANDS] == []
    if (program := find_chromium()) is None:
        pytest.skip("needs chromium")
    pdf = tmp_path / "card.pdf"
    argv = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    subprocess.run([*argv, f"--print-to-pdf={pdf}", CARD.as_uri()], check=True, capture_output=True, timeout=limit_s())
    assert len(re.findall(rb"/Type /Page\b", pdf.read_bytes())) == 1
