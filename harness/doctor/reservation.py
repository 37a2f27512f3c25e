"""The reservation that the site's jobs ask for: whether it exists, has begun, and admits this user. Makes none."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime

from harness.common.programs import Answer
from harness.doctor.result import Result, ok, problem, warning
from harness.doctor.slurm_notation import fields_of, moment_of, names_of
from harness.doctor.surroundings import Surroundings
from harness.site.site import Site
from harness.site.slurm_commands import ask

SHOW = "scontrol show reservation"


def reservation(around: Surroundings) -> Iterator[Result]:
    """Each reservation that a job of the site asks for."""
    name = named(around.site, around.environ)
    if name is not None:
        answer = ask("scontrol", "--oneliner", "show", "reservation", name)
        who = (around.user, around.site.account)
        yield reservation_verdict(name, answer, who, datetime.now())


def named(site: Site, environ: Mapping[str, str]) -> str | None:
    """The reservation in the site's `sbatch` lines, else in SBATCH_RESERVATION; None for none."""
    words = [word for line in site.sbatch for word in shlex.split(line, comments=True)]
    for index, word in enumerate(words):
        if word == "--reservation" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--reservation="):
            return word.partition("=")[2]
    return environ.get("SBATCH_RESERVATION") or None


def reservation_verdict(name: str, answer: Answer, who: tuple[str, str | None], now: datetime) -> Result:
    """Whether it can be used. who: our name and our account. now: in the site's own time."""
    what = f"reservation {name}"
    found = fields_of(answer.out)
    if answer.code or "ReservationName" not in found:
        listed = f"{SHOW}   # those that there are; then sbatch: in the site file"
        return problem(what, "there is no reservation of that name, or you may not see it", listed)
    begins, ends = moment_of(found.get("StartTime", "")), moment_of(found.get("EndTime", ""))
    if not lets_in(found, who):
        users = ", ".join([*names_of(found.get("Users", "")), *names_of(found.get("Accounts", ""))])
        add = f"scontrol update reservation={name} users+={who[0]}   # administrators"
        return problem(what, f"is for {users}, and you are {who[0]} (account {who[1] or 'not named'})", add)
    if ends is not None and ends <= now:
        return problem(what, f"ended at {ends:%Y-%m-%d %H:%M}", f"{SHOW}   # then sbatch: in the site file")
    if found.get("State") != "ACTIVE" and begins is not None and begins > now:
        wait = "bash slurm.sh doctor   # again when it has begun; or leave it out of sbatch: in the site file"
        return warning(what, f"begins at {begins:%Y-%m-%d %H:%M}: jobs wait until then", wait)
    if found.get("State") != "ACTIVE":
        return problem(what, f"is {found.get('State', 'of unknown state')}", f"{SHOW} {name}")
    until = f" until {ends:%Y-%m-%d %H:%M}" if ends else ""
    return ok(what, f"is active{until}, nodes {found.get('Nodes', 'not named')}")


def lets_in(fields: Mapping[str, str], who: tuple[str, str | None]) -> bool:
    """Whether a user of an account may use it. A - shuts out; an account that is not named is not judged."""
    users, accounts = names_of(fields.get("Users", "")), names_of(fields.get("Accounts", ""))
    user, account = who
    if f"-{user}" in users or f"-{account}" in accounts:
        return False
    allowed_users = [name for name in users if not name.startswith("-")]
    allowed_accounts = [name for name in accounts if not name.startswith("-")]
    by_user = not allowed_users or user in allowed_users
    by_account = not allowed_accounts or account is None or account in allowed_accounts
    return by_user and by_account
