"""Values that break programs: numbers at the edges of types, texts of every script, paths to what is no file."""

from __future__ import annotations

from random import Random

NUMBERS = (
    "0", "-0", "1", "-1", "2", "3", "4", "7", "8", "16", "64", "65", "100", "1000", "10000", "10001", "10000000",
    "2147483647", "2147483648", "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "18446744073709551616", "1" + "0" * 30, "9" * 400, "1" * 5000, "0.5", "1.5", "1e3", "1e308",
    "1e309", "1e-400", "1e99999999999", "-1e5", ".5", "5.", "1.0", "1e", "e1", "nan", "NaN", "inf", "-inf", "Infinity",
    "0x10", "0o17", "0b1", "1_000", "１２", "١٢", "²", "½", "Ⅷ", "1,000", "1 000", " 1", "1 ", "+1", "--1", "1-2",
    "1;2", "1/0", "True", "None", "null",
)  # fmt: skip
TEXTS = (
    "", " ", "\t", "\n", "\r\n", "\x01", "\x1b[31mred\x1b[0m", "\x7f", "\u202egnp.exe", "\u200b", "\ufeff", "é", "日本",
    "🙂", "\udcff", "İ", "ß", "a" * 300, "a" * 5000, "ä" * 200, "a\nb", "a b", "'", '"', "`id`", "$(id)",
    "$HOME", "${x}", "$", "a;b", "a|b", "a&b", "a>b", "*", "?", "[a", "{", "}", "{{ 7*7 }}", "{% raw %}", "%s", "%n",
    "\\", "\\n", "#", "#SBATCH", "!", "~", "~nobody-at-all", "-", "--", "=", "a=b", "=a", ",", ",,", ":", "::", "a:b:c",
    ".", "..", "None", "null", "true", "no", "<script>", "../../etc/passwd", "con", "0", "last", "all",
    "auto", "torch", "nsys", "none", "00:00:00", "99:99:99", "1-1-1:1:1", "00:30:00\n#SBATCH -A x",
)  # fmt: skip
PATHS = (
    "gone", "gone/gone", "traces", "traces/", "traces/empty.json", "traces/empty.yaml", "traces/text.txt",
    "traces/rank0.json.gz", "traces/one.sqlite", "traces/site.yaml", "traces/model.yaml", "traces/broken.yaml",
    "traces/checkpoint", "traces/loop", "traces/pipe", "traces/dangling", "traces/data.json", "runs", ".", "..", "./.",
    "/dev/null", "/dev/full", "/proc/self/mem", "/proc/1/gone", "/proc/version", "/etc/hostname", "file:///gone",
    "traces/" + "a" * 256, "a/" * 3000, "traces/é\n.json", "~", "~/x", "traces/rank0.json.gz/x", "x.yaml", "x.yml/",
    "/proc/self/fd/0", "traces/alias.yaml", "traces/run.json", "traces/summary.json", "traces/socket",
)  # fmt: skip

_LETTERS = "aeinorst-_=.,:;/\\ \t\n'\"$`0123456789AZ%{}[]()<>|&*?!#~^@+\x01\x1b\x7fé日🙂\u202e\u0661\udcff"


def nearly(chance: Random, word: str) -> str:
    """The word with one slip: a letter lost, doubled, changed or swapped, in another case."""
    if not word:
        return chance.choice(_LETTERS)
    at = chance.randrange(len(word))
    return chance.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + chance.choice(_LETTERS) + word[at + 1 :],
            word[:at] + chance.choice(_LETTERS) + word[at:],
            word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :],
            word.swapcase(),
            word + word,
            f" {word}",
            f"{word} ",
        )
    )


def odd_number(chance: Random) -> str:
    """A number of any size, sometimes with a fraction or an exponent."""
    whole = str(chance.randrange(10 ** chance.randrange(1, 25)))
    return chance.choice((whole, f"-{whole}", f"{whole}.{whole}", f"{whole}e{chance.randrange(400)}", f"0{whole}"))


def odd_text(chance: Random) -> str:
    """A hostile text, or letters drawn at random."""
    if chance.random() < 0.6:
        return chance.choice(TEXTS)
    return "".join(chance.choices(_LETTERS, k=chance.choice((1, 2, 3, 5, 8, 40))))
