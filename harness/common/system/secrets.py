"""Which variables and words of a command hold secrets, by their names and forms, and how a process forgets them.
Standard library only."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

KEEP = "HARNESS_NSYS_KEEP"
# As a whole word of the name: NCCL_IB_PKEY and TOKENIZERS_PARALLELISM are none.
_WORDS = "KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PASSPHRASE|CREDENTIALS?|JWT|PAT|WEBHOOK"
_SECRET = re.compile(rf"(?:^|_)(?:{_WORDS})(?:_|$)", re.IGNORECASE)
_NAME = rf"""\b(?:\w+_)?(?:{_WORDS})(?:_\w+)?["']?\]?"""
_IS = r"\s*(?::\s*\w+\s*)?[:=]\s*[rbuf]?"
_ASSIGNED = re.compile(rf"""({_NAME}{_IS}("{{3}}|'{{3}}|["']))(.*?)(\2|$)""", re.IGNORECASE)
# As Hugging Face, GitHub, GitLab, OpenAI, Slack, Google and AWS write theirs, JSON web tokens, a long number in
# hexadecimal, and a login in an address.
_TOKEN = re.compile(
    r"(?<![\w-])(?:(?:hf_|api_org_|gh[opusr]_|github_pat_|glpat-|xox[abeprs]-|sk-)[\w-]{4,}|AIza[\w-]{20,}"
    r"|A[KS]IA[A-Z0-9]{12,}|eyJ[\w.~+/=-]{8,}|[0-9a-fA-F]{40,}(?!\w))|(?<=[Bb]earer )[\w.~+/=-]{8,}"
    r"|(?<=://)[^/@\s'\"]+(?=@)"
)
_SHORTEST = 6  # characters of a secret's value: shorter ones are other words, such as "input"
MASK = "***"
_SHORTEST_NUMBER = 6  # digits of a password
# Needed by the processes of a job to find and trust each other, and void when the job has ended.
_OF_THE_JOB = re.compile(r"PMI|PMIX|PALS|OMPI|MPICH|UCX|NCCL|FI", re.IGNORECASE)

# The special tokens of a text, which are no secrets.
_OF_A_TOKENIZER = re.compile(
    r"(?:^|_)(?:PAD|EOS|BOS|UNK|MASK|SEP|CLS|START|END|STOP|SPECIAL|IMAGE|EOT)_TOKEN(?:_|$)", re.IGNORECASE
)


def secret_names(names: Iterable[str]) -> list[str]:
    """Those that hold a secret, sorted.

    >>> secret_names(["WANDB_API_KEY", "HF_TOKEN", "NCCL_IB_PKEY", "TOKENIZERS_PARALLELISM", "PMI_SHARED_SECRET"])
    ['HF_TOKEN', 'WANDB_API_KEY']
    """
    return sorted(n for n in names if _SECRET.search(n) and not _OF_THE_JOB.fullmatch(n.partition("_")[0]))


def masked_text(text: str) -> str:
    """One line of a program or a log without what looks like a secret.

    >>> masked_text('login(token="hf_abcdefghijk")'), masked_text("os.environ['WANDB_API_KEY'] = 'abcdef0123'")
    ('login(token="***")', "os.environ['WANDB_API_KEY'] = '***'")
    >>> masked_text('batch["key"] = keys["token"]'), masked_text("git clone https://me:pass@host/x")
    ('batch["key"] = keys["token"]', 'git clone https://***@host/x')
    """
    return _TOKEN.sub(MASK, _ASSIGNED.sub(_without_value, text))


def _without_value(match: re.Match[str]) -> str:
    is_short = len(match[3]) < _SHORTEST and not re.search("pass|secret", match[1], re.IGNORECASE)
    return match[0] if is_short or not match[3] else match[1] + MASK + match[4]


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with `***` in place of what looks like a secret: the value of a flag that is named
    like one, and a word that has the form of a token.

    >>> masked_words(["--api-key=abc", "--hf-token", "abc", "--pad-token", "<s>", "hf_12345678", "--max-tokens", "9"])
    ['--api-key=***', '--hf-token', '***', '--pad-token', '<s>', '***', '--max-tokens', '9']
    """
    return list(_masked(words))


def holds_secret(words: Sequence[str]) -> bool:
    """Whether `masked_words` would change them."""
    return masked_words(words) != list(words)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a secret, by its name or its value."""
    return bool(secret_names([name])) or holds_secret([f"{name}={value}"]) or masked_text(value) != value


def _masked(words: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        name, equals, value = word.partition("=")
        if is_value and not word.startswith("--") and not _is_size(word):
            yield MASK
        elif equals and value and _is_secret_name(name) and not _is_size(value):
            yield f"{name}={MASK}"
        else:
            yield _TOKEN.sub(MASK, word)
        is_value = not equals and word.startswith("-") and _is_secret_name(name)


def _is_size(word: str) -> bool:
    """A small number, as after --key-size, is no secret."""
    return word.isdecimal() and len(word) < _SHORTEST_NUMBER


def _is_secret_name(flag: str) -> bool:
    name = re.sub(r"\W+", "_", flag).strip("_")
    return _SECRET.search(name) is not None and _OF_A_TOKENIZER.search(name) is None


def kept_from_nsys(environ: Mapping[str, str]) -> list[str]:
    """The secrets that a training under nsys does not get. nsys writes the whole environment of every process that it
    sees into its report, which is then shown and passed on. `HARNESS_NSYS_KEEP` names those that are passed."""
    passed = environ.get(KEEP, "").replace(",", " ").split()
    return [name for name in secret_names(environ) if name not in passed]


def told_of_nsys(names: Iterable[str]) -> str:
    """The sentence about variables that a training under nsys does not get."""
    return (
        f"not passed to the training: {', '.join(names)}, since nsys writes the whole environment into its report; "
        f"{KEEP}=NAME,… passes those that it needs"
    )


def forget(names: Iterable[str]) -> None:
    """Remove variables from this process, also from what other programs see of it: /proc shows the environment as the
    process began, whatever it removed since."""
    unwanted = {os.fsencode(name) for name in names}
    variables = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    index = 0
    while unwanted and (address := variables[index]) is not None:
        name, _, value = ctypes.string_at(address).partition(b"=")
        if name in unwanted:
            ctypes.memset(address + len(name) + 1, ord("x"), len(value))
        index += 1
    for name in unwanted:
        os.environ.pop(os.fsdecode(name), None)
