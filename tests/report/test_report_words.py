"""The words: declared once, drawn, listed, marked on a page, and explained to whoever points at one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.common.errors import RequestError
from harness.explain.answer import Diagnosis
from harness.report.elements import Page, PageTable, Section
from harness.report.page.compose import render_page
from harness.report.words import GROUPS, PageWords, Word, finder, load_words

ROOT = Path(__file__).parents[2]
# Names on the exercises' pages that are no words of this field, or are explained where they are.
NO_WORDS = {"A100", "CPU", "EFA", "GB", "GH200", "GPU", "GPU0", "GPU1", "GPU2", "H100", "HW", "IP", "MB", "MLP"}
NO_WORDS |= {"NVIDIA", "SXM", "TCP"}


def words_in(text: str) -> list[Word]:
    return [finder().of(found[1]) for found in finder().pattern.finditer(text)]


def test_every_word_has_a_group_a_short_meaning_and_a_page_that_exists() -> None:
    words = load_words()
    assert len(words) > 100 and {word.group for word in words} == set(GROUPS)
    assert [word.group for word in words] == sorted((word.group for word in words), key=GROUPS.index)
    assert len({word.id for word in words}) == len(words)
    for word in words:
        assert len(word.meaning) <= 260 and word.meaning.endswith((".", ".)")), word.word
        assert word.meaning.count(". ") <= 2, f"{word.word}: one or two sentences"
        assert not word.link or (ROOT / "docs" / word.link.partition("#")[0]).is_file(), word.link


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("words: [{word: a, group: GPU}]", "missing required field `meaning`"),
        ("words: [{word: a, group: Cars, meaning: b}]", "Invalid enum value 'Cars'"),
        ("words: [{word: a, group: GPU, meaning: b, see: c}]", "unknown field `see`"),
        ("words: [{word: a, group: GPU, meaning: b}, {word: c, also: [a], group: GPU, meaning: d}]", "a spelling of"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "words.yaml"
    file.write_text(text)
    with pytest.raises(RequestError, match=re.escape(said)) as refused:
        load_words(file)
    assert str(file) in str(refused.value)


def test_the_words_that_the_course_teaches_are_there() -> None:
    taught = (
        "kernel; CUDA API; stream; compute-bound; SM; warp; thread; occupancy; SM Active; SM Issue; Tensor "
        "Active; HBM; pinned memory; host; device; NVTX; range; trace; window; capture range; sampling; PCIe; "
        "NVLink; NVSwitch; InfiniBand; Ethernet; RDMA; GPUDirect P2P; GPUDirect RDMA; host staging; NIC; NUMA; "
        "latency; bandwidth; algorithm bandwidth; bus bandwidth; rank; local rank; world size; process group; "
        "node; micro-batch; global batch; gradient accumulation; DP; DDP; FSDP; ZeRO; hpZ; TP; PP; CP; EP; "
        "pipeline bubble; bucket; sharding; step; exposed communication; overlap; idle; straggler; MFU; HFU; POP "
        "efficiency; fp32; tf32; bf16; fp16; fp8; E4M3; E5M2; loss scaling; mixed precision; master weights; "
        "reduce; broadcast; scatter; gather; all-gather; reduce-scatter; all-reduce; all-to-all; send/recv"
    )
    known = {word.word for word in load_words()}
    assert not [word for word in taught.split("; ") if word not in known]


def test_the_sms_of_each_gpu_are_the_same_everywhere() -> None:
    (sm,) = (word.meaning for word in load_words() if word.word == "SM")
    texts = [(ROOT / each).read_text(encoding="utf-8") for each in (
        "configs/paraver/threads_per_kernel.cfg", "docs/timelines.md", "configs/devices.yaml"
    )]  # fmt: skip
    view, page, devices = texts
    a100, leonardo, h100 = (int(number) for number in re.findall(r"\b\d{3}\b", sm))
    assert all(
        str(2048 * sms) in view and f"{2048 * sms:,}".replace(",", " ") in page for sms in (a100, leonardo, h100)
    )
    assert f"its {leonardo} SMs" in devices


def test_every_abbreviation_on_an_exercises_page_is_a_word() -> None:
    unknown: dict[str, set[str]] = {}
    for page in sorted((ROOT / "exercises").glob("exercise_*/README.md")):
        text = re.sub(
            r"```.*?```|`[^`]*`|^    .*?$|<!--.*?-->|\]\([^)]*\)",
            " ",
            page.read_text(encoding="utf-8"),
            flags=re.S | re.M,
        )
        abbreviations = set(re.findall(r"(?<![\w/.-])[A-Z][A-Z0-9]+(?![\w/-])", text))
        if new := {a for a in abbreviations if not words_in(a)} - NO_WORDS:
            unknown[page.parent.name] = new
    assert unknown == {}


def test_every_collective_has_its_drawing() -> None:
    words = {word.id.removeprefix("word-") for word in load_words() if word.group == "Collectives"}
    drawn = {file.stem for file in (ROOT / "docs/pictures/collectives").glob("*.svg")}
    assert drawn == words - {"collective", "message"}


def test_a_spelling_is_found_as_a_word_and_not_inside_a_name() -> None:
    expected = {
        "Exposed communication": ["exposed communication"], "bus GB/s": ["bus bandwidth"], "all_reduce": ["all-reduce"],
        "steps": ["step"], "a step's time": ["step"], "PP": ["PP"], "app and pp": [], "train/step.py": [],
        "ranks.json": [], "--rank": [], "GEMM": ["GEMM"], "gemm fp32": ["GEMM", "fp32"],
        "1/β (alg)": ["β", "algorithm bandwidth"],
        "lost per step": ["lost time"], "NVLink of NVSwitch": ["NVLink", "NVSwitch"], "time_step": [],
    }  # fmt: skip
    assert {text: [word.word for word in words_in(text)] for text in expected} == expected


def test_a_word_is_marked_once_in_a_part_and_is_one_stop_of_the_page() -> None:
    words = PageWords()
    assert str(words.mark("rank <1> and rank 2")) == '<a class="word" href="#word-rank">rank</a> &lt;1&gt; and rank 2'
    words.part()
    assert 'tabindex="-1"' in words.mark("a rank")
    words.part(folded=True)
    assert 'tabindex="-1"' in words.mark("idle"), "what is folded away is no stop"
    words.part()
    assert "tabindex" not in words.mark("idle")
    assert [word.word for word in words.used] == ["rank", "idle"]


def a_page(*sections: Section) -> str:
    return render_page(Page(title="t", subtitle="s", said=Diagnosis(["It is idle."]), before=sections, after=()))


def test_a_page_carries_the_words_that_occur_on_it_and_no_other() -> None:
    table = PageTable("Time", ("rank", "bus GB/s"), [["0", "straggler"]])
    page = a_page(Section("x", "Overlap", "A lead on `bubble` and the window.", tables=[table]))
    carried = re.findall(r'<div id="word-([\w-]+)"><dt>', page)
    assert carried == ["window", "bus-bandwidth", "rank", "overlap", "idle"], "no word of a cell or a command"
    assert 'class="word"' not in a_page().replace('<a class="word" href="#word-idle">', "")
