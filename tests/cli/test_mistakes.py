"""What is said wrong: one line that names it, code 2, and nothing is changed."""

from __future__ import annotations

import shlex
from itertools import cycle

from fairq.model import rules
from fairq.model.schedules import SCHEDULE_NAME
from tests.server.harness import OPERATOR, tenant

from .harness import Commands, check_error
from .test_help import COMMANDS, example_of

CREATE, LIMITS = "schedules create reports n 1", "tenants set-limits emails ada"
OF_TENANTS = ("enqueue", "schedules")  # commands that need no operator
MISTAKES = [  # a command, and what its error names
    ("enqueue emails {oops", "JSON"), ("enqueue emails text", "quotes"),
    ("enqueue emails 1 --delay -1", "delay"), ("enqueue emails 1 --max-attempts -1", "max_attempts"),
    ("enqueue emails 1 --id 'a b'", "id"), ("enqueue emails", "payload"), ("enqueue emails 1 --lines x", "payload"),
    ("enqueue emails 1 --requests x", "one of"), ("enqueue emails --lines x --requests x", "one of"),
    ("enqueue emails --lines /nowhere/at/all", "cannot read"), ("enqueue emails --lines - --tenant a", "--tenant"),
    ("enqueue emails --requests /nowhere/at/all", "cannot read"), ("enqueue emails 1 --max-running 3", "--lines"),
    ("enqueue emails --lines - --text-lines --dedupe-key k", "dedupe"),
    ("enqueue emails --requests - --dedupe-key k", "dedupe"), ("enqueue emails --requests - --text-lines", "--lines"),
    ("enqueue emails --requests - --dedupe-payload", "dedupe"), (f"enqueue emails --requests - --id {'x' * 31}", "30"),
    ("enqueue emails --requests - --max-running -1", "max_running"),
    (f"{CREATE} --every 1".replace(" 1 ", " {oops "), "JSON"), (CREATE, "--cron"),
    (f"{CREATE} --every 1 --cron '* * * * *'", "--cron"), (f"{CREATE} --every 0.1", "every"),
    (f"{CREATE} --every 1 --dedupe-period 5", "dedupe_period"), (f"{CREATE} --cron nightly", "cron"),
    (f"{CREATE} --cron '0 0 31 4 *'", "cron"), (f"{CREATE} --cron '0 3 * * *' --zone Copenhagen", "zone"),
    ("dead replay emails", "--all"), ("dead purge emails", "--all"), ("dead replay emails ada/a --all", "--all"),
    ("dead purge emails ada/a --all --yes", "--all"), ("dead replay emails ada/a --tenant ada", "--all"),
    ("dead replay emails ada/a --rate 5", "--rate"), ("dead purge emails ada/a --older-than 7d", "--all"),
    ("dead replay emails --all --rate 0", "rate"), ("dead replay emails --all --rate nan", "rate"),
    ("dead replay emails --all --tenant ''", "tenant"), ("dead purge emails --all --yes --error ''", "error"),
    ("dead purge emails --all --yes --older-than 500d", "older_than"), ("dead list emails --limit 0", "limit"),
    ("dead list emails --older-than 2h --younger-than 1h", "younger"),
    ("batches list emails --limit 0", "limit"), ("batches watch emails r-1", "full id"),
    ("tasks cancel emails", "missing ids"), ("tasks cancel emails ada/x --all", "not both"),
    ("tasks cancel emails ada/x --dry-run", "need --all"), ("tasks cancel emails ada/x --error e", "need --all"),
    ("tasks cancel emails --all --yes", "tenant"),
    ("queues set emails", "at least one setting, as name=value"),
    ("queues set emails lease_ms=1", "lease_ms"), (f"queues set emails lease_ms={10**30}", "lease_ms must be"),
    ("queues set emails share=luck", "share"), ("queues set emails colour=1", "'colour'; there are share, lease_ms,"),
    ("queues set emails lease_ms", "expected name=value"),
    *((f"queues set emails reserve={text}", "reserve")
      for text in ("20", "91%", "-1%", "12.5%", "0.125", "a%", "20%%", "", "nan")),
    *((f"tenants set-weight emails ada {weight}", "weight") for weight in ("0", "-1", "nan", "inf", "1e9")),
    (LIMITS, "--stored-bytes"), (f"{LIMITS} --stored-bytes 5MB", "stored_bytes"),
    *((f"{LIMITS} --max-running {text}", "max_running") for text in ("many", "1.5", "-1")),
    *((f"{LIMITS} --rate {text}", "rate") for text in ("5/week", "fast", "1e9")),
    *((f"{command} '{hours}'", "opening_hours") for command in ("tenants hours emails ada", "queues hours emails")
      for hours in ("at noon", "12:00-15:00 Europe/Atlantis", "00:00-24:00")),
    ("tenants hours emails ada ''", "open"), ("queues hours emails 12:00-15:00 --always", "open"),
    ("webhooks add emails hooks.example", "invalid url"),
    ("webhooks add emails https://user:pass@a.example/", "user or password"),
    (f"webhooks add emails https://a.example/ --name {'n' * 129}", "name"),
    ("webhooks add emails https://a.example/ --secret-file none", "none"),
    ("audit --verb No!", "verb"), ("audit --by x", "token"), ("audit --queue 'A b'", "queue"),
    ("audit --count 0", "count"),
    ("tokens create tenant", "tenant"), ("tokens create viewer --tenant ada", "tenant"),
    ("tokens create tenant --tenant 'a*'", "tenant"), ("tokens create viewer --label 'a\nb'", "label"),
    (f"tokens create viewer --label {'x' * 81}", "label"), ("tokens create viewer --expires-after 401d", "expires"),
    ("tokens create viewer --expires-after -1s", "expires"), ("tokens revoke nobody", "nobody"),
    ("events emails", "tenant"), ("events emails --tenant ada --after 9", "newest event"),
    ("events emails --tenant ada --after -1", "after"),
]  # fmt: skip


def test_a_mistake_is_one_line_and_code_2_and_changes_nothing(commands: Commands) -> None:
    for line, word in MISTAKES:
        argv = shlex.split(line)
        check_error(commands(*argv, token=tenant("ada") if argv[0] in OF_TENANTS else OPERATOR), 2, word)
    assert commands("queues", "list", "--json").json == []
    assert commands("tokens", "list", "--json").json == []


NAMES = {  # that stand in the examples of commands: what they are, and the rule of that
    "emails": ("queue", rules.QUEUE), "acme": ("tenant", rules.TENANT), "acme/a1": ("id", rules.FULL_ID),
    "acme/july": ("id", rules.FULL_ID), "mailer-1": ("worker", rules.WORKER), "nightly": ("name", SCHEDULE_NAME),
}  # fmt: skip
UNLIKE = ("webhook-worker", "webhook-secret", "audit")  # two look for secrets first; a filter may be empty


def test_every_command_refuses_what_can_be_no_name_in_the_place_of_its_examples(commands: Commands) -> None:
    bad = {name: cycle(each for each in rule.bad if each and each[0] != "-") for name, (_, rule) in NAMES.items()}
    tried = set()
    for command in (each for each in COMMANDS if each[0] not in UNLIKE):
        words = example_of(command)
        sure = ["--yes"] if command[-1] in ("cancel", "purge") else []
        for at, (what, _) in ((at, NAMES[word]) for at, word in enumerate(words) if word in NAMES):
            for value in ("", next(bad[words[at]])):  # without a name, some commands act on all
                check_error(commands(*words[:at], value, *words[at + 1 :], *sure), 2, what)
            tried.add(words[at])
    assert tried == NAMES.keys()
    assert commands("queues", "list", "--json").json == commands("tokens", "list", "--json").json == []


def test_what_no_command_takes_is_reported_with_its_usage_and_code_2(commands: Commands) -> None:
    for line in (
        "enqueue", "enqueue emails 1 --delay soon", "fly", "tenants fly", "tenants set-weight emails ada",
        "tenants set-weight emails ada heavy", "queues list --colour", "queues delete", "dead list",
        "tokens create king",
        "dead replay emails --all --reason boredom", "dead replay emails --all --older-than long",
        "dead replay emails --all --older-than 90", "dead replay emails --all --rate fast",
    ):  # fmt: skip
        done = commands(*shlex.split(line))
        assert (done.code, "Traceback" in done.out + done.err) == (2, False), line
        assert done.err + done.out, line


def test_what_does_not_exist_is_one_line_and_code_1(commands: Commands) -> None:
    for line, word in (
        ("workers drain mill", "no worker mill is attached"), ("workers show mill", "no worker mill is attached"),
        ("tenants list nowhere", "nowhere"), ("queues repair nowhere", "nowhere"),
        ("queues purge nowhere --yes", "there is no queue nowhere"), ("why nowhere ada/t", "nowhere"),
        ("schedules pause reports none --tenant ada", "none"), ("schedules resume reports none --tenant ada", "none"),
        ("schedules remove reports none --tenant ada", "none"),
        *((f"webhooks {verb} emails https://a.example/", "has no webhook https://a.example/")
          for verb in ("remove", "pause", "resume")),
    ):  # fmt: skip
        check_error(commands(*shlex.split(line)), 1, word)
