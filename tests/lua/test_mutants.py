"""Planted bugs: each of them is put into the library's text, and random walks of the state machine must find it.

A mutant is (what it breaks, section's text, replacement); it is loaded under a version of its own beside the real
library. A text that no longer occurs exactly once fails the test, so the table cannot rot.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
import redis

from fairq.store import library

from .machine import QueueMachine, Walk

WALKS, STEPS = 20, 300


class Mutant(NamedTuple):
    """A planted bug."""

    name: str
    text: str
    instead: str


MUTANTS = [
    Mutant("a stale token is accepted", "attempt and last ~= tonumber(attempt) or state ~= LEASED", "state ~= LEASED"),
    Mutant("an ended lease is settled again", "tonumber(attempt) or state ~= LEASED then", "tonumber(attempt) then"),
    Mutant("a twin in one call is settled twice", "  set_run(call, id, false)\n  forgotten", "  forgotten"),
    Mutant("a late owner is told gone", "and state == SETTLED and 'gone'", "and 'gone'"),
    Mutant("a claim takes one too many", "pick_round(call, limit - (#out - 2) / 4)", "pick_round(call, limit + 1)"),
    Mutant("expired tasks are leased", "if expires_at > 0 and expires_at <= call.now then", "if false then"),
    Mutant(
        "a task expires a ms late",
        "expires_at <= call.now then\n      unpick",
        "expires_at < call.now then\n      unpick",
    ),
    Mutant("expired tasks are charged", "      unpick(call, picks, i, 0)\n", ""),
    Mutant("the end of a started task is watched", "if expires_at > 0 then started[#started + 1] = id end", ""),
    Mutant(
        "resuming seats nobody",
        "  call.readied = paused == 0 and",
        "  target.touched, call.touched = nil, {}\n  call.readied = paused == 0 and",
    ),
    Mutant("paused tenants stay in the draw", "return t.ready > 0 and t.paused == 0", "return t.ready > 0"),
    Mutant("idling banks credit", "t.vtime, t.slot = call.queue.clock, AWAKE", "t.slot = AWAKE"),
    Mutant(
        "coming back sheds debt", "if t.vtime > call.queue.clock then\n    take_slot", "if false then\n    take_slot"
    ),
    Mutant("the wake list starves the backlog", "if woken and not (is_behind and", "if woken and not (false and"),
    Mutant("the backlog starves the wake list", "is_behind and random(call) < 0.5", "is_behind"),
    Mutant("the second draw is ignored", "if other and other_vtime < vtime then", "if false then"),
    Mutant("a tenant is listed twice", "if t.listed == 0 then\n      t.listed = 1", "if true then\n      t.listed = 1"),
    Mutant("a dropped wake entry is not noted", "else touch(call, name).listed = 0 end", "end"),
    Mutant("woken tenants that are not served are lost", "  push_back_woken(call, round)\n", ""),
    Mutant("the clock stands still", "call.queue.clock = call.queue.clock + cost / weight_sum", ""),
    Mutant("a hole in the slots", "moved.slot = t.slot", "moved.slot = last"),
    Mutant("weights leak from the sum", "call.queue.weight_sum = call.queue.weight_sum - t.weight", ""),
    Mutant(
        "a weight change forgets the sum", "    call.queue.weight_sum = call.queue.weight_sum + weight - before\n", ""
    ),
    Mutant(
        "a weight change multiplies debts",
        "(t.vtime - call.queue.clock) * before / weight",
        "(t.vtime - call.queue.clock)",
    ),
    Mutant("a weight change keeps the class", "  t.weight, t.rerated = weight, true", "  t.weight = weight"),
    Mutant("a lease's end keeps the class", "  t.rerated = true\n", ""),
    Mutant("draws go by weight alone", "darts.inside[i] < rate_of(call, weight, estimate)", "darts.inside[i] < weight"),
    Mutant("tasks may be free", "math.max(call.now - leased_at, 1)", "call.now - leased_at"),
    Mutant("estimates are not corrected", "  correct(call, t, epoch, leased_at, cost, weight_sum)\n", ""),
    Mutant("voids are popped as tasks", "  if t.voids == 0 then return", "  if true then return"),
    Mutant(
        "voids are not credited",
        "if redis.call('HINCRBY', void, id, -1) == 0 then redis.call('HDEL', void, id) end",
        "",
    ),
    Mutant("an emptied list keeps its voids", "if #ids == wanted and t.ready == 0 then", "if false then"),
    Mutant("expired entries stay counted", "  count_ready(call, t, -1)\n", ""),
    Mutant("attempts never run out", "if is_last_attempt(run) then return bury(call, t, id, run, EXHAUSTED) end", ""),
    Mutant(
        "lost leases never run out", "if is_last_attempt(run) then return bury(call, t, id, run, LEASE_LOST) end", ""
    ),
    Mutant(
        "one attempt too few",
        "run.attempt - run.forgiven >= run.max_attempts",
        "run.attempt - run.forgiven >= run.max_attempts - 1",
    ),
    Mutant("release is not forgiven", "  run.forgiven = run.forgiven + 1\n", ""),
    Mutant(
        "release goes to the end",
        "  put_ready(call, t, {id}, 'LPUSH')\nend\n\nfunction actions.reap",
        "  put_ready(call, t, {id})\nend\n\nfunction actions.reap",
    ),
    Mutant("retries forget their window", "  if run.expires_at > 0 then redis.call", "  if false then redis.call"),
    Mutant("ended leases stay in the set", "  write('ZREM', key(call, 'leases'), call.ended)\n", ""),
    Mutant(
        "leases are reaped early",
        "key(call, 'leases'), '-inf', call.now,",
        "key(call, 'leases'), '-inf', call.now + 1,",
    ),
    Mutant(
        "tasks are promoted early",
        "local ids = redis.call('ZRANGE', delayed, '-inf', call.now,",
        "local ids = redis.call('ZRANGE', delayed, '-inf', '+inf',",
    ),
    Mutant("promotion has no limit", "math.max(1, math.floor(limit / #tenants))", "limit"),
    Mutant("the rest of a herd is forgotten", "  if next_due[2] then\n", "  if false then\n"),
    Mutant("a later start hides an earlier one", "key(call, 'due'), 'LT', start_at", "key(call, 'due'), start_at"),
    Mutant(
        "time goes back",
        "call.now = math.max(clock_ms(call, args[1]), call.queue.now)",
        "call.now = clock_ms(call, args[1])",
    ),
    Mutant(
        "done ids are forgotten at the window's edge",
        "known[id] = records[i] or recent[i] or before[i]",
        "known[id] = records[i] or recent[i]",
    ),
    Mutant("an id twice in a call is stored twice", "outcomes[n], known[id] = 'ok', true", "outcomes[n] = 'ok'"),
    Mutant(
        "replay keeps the old attempts", "attempt = attempts, forgiven = attempts,", "attempt = attempts, forgiven = 0,"
    ),
    Mutant("replay keeps the closed window", "    reopen(call, id, record)\n", ""),
    Mutant(
        "purge leaves the record",
        "    forget_dead(call, id, death)\n    call.forgotten[#call.forgotten + 1] = id\n  end)",
        "    forget_dead(call, id, death)\n  end)",
    ),
    Mutant("dead letters are kept for ever", "'-inf', call.now - q.dead_keep_ms,", "'-inf', 0,"),
    Mutant("accounts outlive a change of share", "if epoch ~= call.queue.epoch then  --", "if false then  --"),
    Mutant("of many that fire all do", "if s.head ~= head or s.paused == 1", "if not s.head or s.paused == 1"),
    Mutant(
        "a twin in one call fires twice",
        "  s.head = struct.pack(SCHEDULE_FORMAT",
        "  local s = setmetatable({}, {__index = s})\n  s.head = struct.pack(SCHEDULE_FORMAT",
    ),
    Mutant("a schedule fires early", "or s.next_at > call.now or", "or"),
    Mutant("a paused schedule fires", "s.head ~= head or s.paused == 1 or", "s.head ~= head or"),
    Mutant("a fire stays due", "  s.next_at = next_at\n  save_schedule(call, s)\n  return outcome", "  return outcome"),
    Mutant("missed fires are made up for in any case", "s.missed == ONCE or call.now - due_at <= LATE_MS", "true"),
    Mutant("missed fires are never made up for", "s.missed == ONCE or call.now - due_at", "call.now - due_at"),
    Mutant("a fire is missed too soon", "call.now - due_at <= LATE_MS", "call.now - due_at < LATE_MS / 2"),
    Mutant("a fire forgets its window", "0, due_at, expires_in, 0,", "0, due_at, 0, 0,"),
    Mutant("a paused schedule stays due", "s.paused == 1 and '+inf' or s.next_at", "s.next_at"),
    Mutant(
        "a schedule that is gone stays due", "  redis.call('ZREM', key(call, 'fires'), tenant .. '/' .. name)\n", ""
    ),
    Mutant("another task moves the time", "if s.timing ~= timing then s.timing", "if true then s.timing"),
    Mutant("a resume does not look at the head", "if not s or s.head ~= args[5] then", "if not s then"),
    Mutant("a tick does not see the next fire", "leases = 0, fires = 0,", "leases = 0,"),
    Mutant("hunger is never noted", "q.hungry, call.readied = 1, q.weight_sum > 0", ""),
]


# Found only after thousands of steps.
DEEP = {
    "a weight change multiplies debts",
    "a task expires a ms late",
    "the wake list starves the backlog",
    "the backlog starves the wake list",
    "a tenant is listed twice",
    "woken tenants that are not served are lost",
    "a hole in the slots",
    "a weight change keeps the class",
    "a lease's end keeps the class",
    "an emptied list keeps its voids",
}
CASES = [pytest.param(mutant, marks=[pytest.mark.slow] if mutant.name in DEEP else []) for mutant in MUTANTS]


@pytest.mark.one_store
@pytest.mark.parametrize("mutant", CASES, ids=[mutant.name.replace(" ", "-") for mutant in MUTANTS])
def test_a_planted_bug_is_found(redis_client: redis.Redis, mutant: Mutant) -> None:
    source = library.source()
    assert source.count(mutant.text) == 1, "the text to mutate must occur once"
    redis_client.function_load(
        source.replace(mutant.text, mutant.instead)
        .replace(f"name={library.NAME}", "name=fairq_mutant", 1)
        .replace(f"local VERSION = {library.VERSION}", "local VERSION = 'mutant'", 1),
        replace=True,
    )
    machine = type("MutantMachine", (QueueMachine,), {"client": redis_client, "version": "mutant"})
    try:
        with pytest.raises((AssertionError, redis.ResponseError, KeyError, struct.error)):
            walk(machine, walks=WALKS * (5 if mutant.name in DEEP else 1))
    finally:
        redis_client.function_delete("fairq_mutant")


def walk(machine: type[QueueMachine], walks: int = WALKS) -> None:
    """Walk the machine from a few fixed seeds; the first difference ends it."""
    for seed in range(walks):
        path = Walk(machine(), seed)
        for _ in range(STEPS):
            path.step()


@pytest.mark.one_store
def test_without_a_planted_bug_the_same_walks_find_nothing(redis_client: redis.Redis) -> None:
    walk(type("RealMachine", (QueueMachine,), {"client": redis_client}), walks=5)
