"""Planted bugs: each of them is put into the library's text, and random walks of the state machine must find it.

A mutant is (what it breaks, section's text, replacement); it is loaded under a version of its own beside the real
library. A text that no longer occurs exactly once fails a test of the first tier, so the table cannot rot.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
import redis

from fairq.store import library

from .calls import load_variant
from .machine import FEW_VARIANT, QueueMachine, Walk

WALKS, STEPS = 20, 300


class Mutant(NamedTuple):
    """A planted bug."""

    name: str
    text: str
    instead: str


MUTANTS = [
    Mutant("the number of a lease is not looked at", "number and lease ~= number or not is_leased", "not is_leased"),
    Mutant("an ended lease is settled again", "lease ~= number or not is_leased(state) then", "lease ~= number then"),
    Mutant(
        "numbers do not rise in a ms",
        "math.max(call.queue.last_lease + 1, (call.now - LEASES_SINCE) * LEASES_PER_MS)",
        "math.max(call.queue.last_lease, 1, (call.now - LEASES_SINCE) * LEASES_PER_MS)",
    ),
    Mutant("numbers do not go on with the time", "(call.now - LEASES_SINCE) * LEASES_PER_MS)", "0)"),
    Mutant("the last number is not kept", "q.last_lease, head[3] = claim.lease, claim.lease", "head[3] = claim.lease"),
    Mutant("a claim that takes nothing uses up a number", "if #claim.leases > 0 then q.last", "if true then q.last"),
    Mutant(
        "who ended a task is not remembered",
        "(how == 'cancelled' and 'c' or '') .. text(lease)",
        "(how == 'cancelled' and 'c' or '') .. '0'",
    ),
    Mutant("a done task's number is not looked at", "'^c', ''))) == number and 'gone'", "'^c', ''))) ~= 0 and 'gone'"),
    Mutant("a dead letter's number is not looked at", "lease == number and (reason", "(reason"),
    Mutant("a task that ran out is remembered by its owner", "is_reaped and 0 or lease)", "lease)"),
    Mutant("a twin in one call is settled twice", "  set_run(call, id, false)\n  forgotten", "  forgotten"),
    Mutant(
        "a cancelled task is tried again",
        "if state == STOPPING and action ~= 'ack' and action ~= 'finish' then",
        "if false then",
    ),
    Mutant(
        "a cancelled task stays in its list",
        "  take_out(call, t, id)\n  t.bytes = t.bytes - payload_bytes(t, #record)",
        "  t.bytes = t.bytes - payload_bytes(t, #record)",
    ),
    Mutant(
        "the end of a cancelled task is watched",
        "  if expires_at > 0 then redis.call('ZREM', key(call, 'expiring'), id) end\n",
        "",
    ),
    Mutant("the cap is not looked at", "if b and b.cap > 0 and b.admitted >= b.cap then", "if false then"),
    Mutant("a place is never given back", "if b then b.admitted = b.admitted - 1 end", ""),
    Mutant(
        "a lost lease keeps its place",
        "    count_running(call, id, -1)\n    give_place_back(call, id)\n",
        "    count_running(call, id, -1)\n",
    ),
    Mutant("a batch is complete before it is closed", "if b.state == CLOSED and b.done + b", "if b.done + b"),
    Mutant(
        "a batch is complete before its tasks",
        "if b.state == CLOSED and b.done + b.dead + b.cancelled == b.total",
        "if b.state == CLOSED",
    ),
    Mutant("free places stay free", "      refill(call, id, b)\n", ""),
    Mutant("later batches of a name are the same", "return b.created_at == extras.opened_at and b or nil", "return b"),
    Mutant("tasks are added to closed batches", "if b.state ~= OPENED then refuse('batch_closed', 'batch') end", ""),
    Mutant("success is called back after a death", "if b.done == b.total then call_back", "if true then call_back"),
    Mutant("every death calls back", "        b.on_death = ''\n", ""),
    Mutant(
        "an expired held task keeps its entry",
        "if not batch_of(call, id) or redis.call('ZREM', held_key(call, id), id) == 0 then",
        "if true then",
    ),
    Mutant("a result is kept for ever", "result and tonumber(until_ms) > call.now and redis", "result and redis"),
    Mutant("a dead task holds its key", "  free_key(call, t.name, id)\n", ""),
    Mutant("a task frees another one's key", "if redis.call('GET', at) == '0 ' .. id then", "if true then"),
    Mutant("a key is held for ever", "(until_ms == '0' or tonumber(until_ms) > call.now)", "true"),
    Mutant("levels are served in any order", "  table.sort(levels)\n", ""),
    Mutant("a level that is opened is not noted", "    open_level(call, t, level)\n", ""),
    Mutant("voids are those of any level", "return level == USUAL_PRIORITY and id or level .. ':' .. id", "return id"),
    Mutant("extras outlive their task", "  redis.call('HDEL', key(call, 'extras'), id)\n", ""),
    Mutant("a moved task stays where it was", "    take_out(call, t, id)\n    rewrite", "    rewrite"),
    Mutant("a late owner is told gone", "and state == SETTLED and 'gone'", "and 'gone'"),
    Mutant("a claim takes one too many", "pick_round(call, limit - #claim.leases / 4)", "pick_round(call, limit + 1)"),
    Mutant("expired tasks are leased", "if expires_at > 0 and expires_at <= call.now then", "if false then"),
    Mutant(
        "a task expires a ms late",
        "expires_at <= call.now then\n        unpick",
        "expires_at < call.now then\n        unpick",
    ),
    Mutant("expired tasks are charged", "        unpick(call, picks, i, 0)\n        claim.late", "        claim.late"),
    Mutant(
        "the end of a started task is watched",
        "if expires_at > 0 then claim.windows[#claim.windows + 1] = id end",
        "",
    ),
    Mutant(
        "resuming seats nobody",
        "  call.readied = target.barred == 0 and",
        "  target.touched, call.touched = nil, {}\n  call.readied = target.barred == 0 and",
    ),
    Mutant("barred tenants stay in the draw", "if t.ready == 0 or t.barred ~= 0 then", "if t.ready == 0 then"),
    Mutant("a tenant's cap is not looked at", "return cap == 0 or t.leased < cap", "return true"),
    Mutant("a closed queue is served", "while q.barred == 0 and", "while bit.band(q.barred, 1) == 0 and"),
    Mutant("a window that opens stays closed", "limits.bar(thing, BAR_CLOSED, not is_open)", ""),
    Mutant(
        "resuming opens a window",
        "limits.bar(target, BAR_PAUSED, is_paused)",
        "target.barred = is_paused and 1 or 0",
    ),
    Mutant("every server turns a window", "if args[7] ~= '' and args[7] ~= head then return false end", ""),
    Mutant("a window that is taken off turns again", "    redis.call('ZREM', key(call, 'turns'), name)\n", ""),
    Mutant(
        "nobody is told of an opening", "  call.readied = thing.barred == 0 and", "  local _ = thing.barred == 0 and"
    ),
    Mutant("what keeps a tenant out is forgotten", "    limits.keep_out(call, t)\n", ""),
    Mutant(
        "a tenant is kept out since its last start",
        "if cause ~= 0 and (t.slot ~= OUT or t.cause == 0) then",
        "if cause ~= 0 then",
    ),
    Mutant(
        "a tenant is kept out since its first time",
        "if cause ~= 0 and (t.slot ~= OUT or t.cause == 0) then",
        "if cause ~= 0 and t.cause == 0 then",
    ),
    Mutant("nobody knows when a tenant was let in", "    t.since = call.now\n", ""),
    Mutant(
        "an idle tenant is kept out",
        "t.ready > 0 and (t.barred ~= 0 and t.barred or 8) or 0",
        "(t.barred ~= 0 and t.barred or 8)",
    ),
    Mutant("a claim does not tell who was kept out", "    if t.cause ~= 0 then limits.tell_kept(call, t) end\n", ""),
    Mutant("whoever is over the cap keeps the slot", "    touch(call, name)\n    return nil\n", "    return nil\n"),
    Mutant("a void at the head stays there", "    redis.call('LPOP', list)\n", ""),
    Mutant("a start takes no token", "limits.spend(call, t, 1) end", "end"),
    Mutant("what does not start takes a token", "  limits.spend(call, t, -1)\n", ""),
    Mutant("there is no burst", "local next_at = t.spent - (burst - 1) * interval", "local next_at = t.spent"),
    Mutant("tokens gather for ever", "t.spent = math.max(t.spent, call.now) + count", "t.spent = t.spent + count"),
    Mutant(
        "an old rate's debt stays", "  t.spent = math.min(t.spent, call.now + burst * interval)", "  local _ = t.spent"
    ),
    Mutant("whoever is out of tokens stays out", "  limits.unpark(call, limit)\n", ""),
    Mutant("a fast tenant comes for every token", "(refill - 1) * interval", "0"),
    Mutant(
        "a new rate waits for the old one's end",
        "    limits.meter(call, t)\n  end\n  close(call)",
        "  end\n  close(call)",
    ),
    Mutant(
        "a new rate for all does not reach the parked",
        "  redis.call('ZUNIONSTORE', key(call, 'parked'), 1, key(call, 'parked'), 'WEIGHTS', 0)\n",
        "",
    ),
    Mutant("a wider cap for all lets nobody in", "if not is_wider(before.cap, after.cap) then", "if true then"),
    Mutant("a sweep has no end", "    call.queue.sweeping = 0\n", ""),
    Mutant(
        "a guarantee is not kept", "return t.limited == 1 and t.leased < limits.of(call, t).guaranteed", "return false"
    ),
    Mutant(
        "a claim serves a guarantee once",
        "      round.woken[#round.woken + 1], t.listed = t, 1  --",
        "      local _ = t  --",
    ),
    Mutant("a guarantee sheds debt", "= t.base + math.max(behind, 0), false", "= t.base + behind, false"),
    Mutant("a guaranteed tenant keeps its slot", "    if t.slot > 0 then free_slot(call, t) end\n    wake", "    wake"),
    Mutant("quotas are not looked at", "  check_quotas(call, arrivals)\n", ""),
    Mutant("a fire passes the quota", "if outcome == 'ok' and exceeded(call, arrivals) then", "if false then"),
    Mutant("leased tasks weigh", "t.bytes = t.bytes - #record + HEADER_BYTES + #name", ""),
    Mutant(
        "what comes back weighs nothing",
        "  t.bytes = t.bytes + payload_bytes(t, redis.call('HSTRLEN', key(call, 'tasks'), id))\n",
        "",
    ),
    Mutant("cancelled tasks weigh", "  t.bytes = t.bytes - payload_bytes(t, #record)\n", ""),
    Mutant("replayed tasks weigh nothing", "    t.bytes = t.bytes + payload_bytes(t, #record)\n", ""),
    Mutant("dead letters are not bounded", "  make_room_for_dead(call, t)\n", ""),
    Mutant("own limits are those for all", "if own[limit] == UNSET then own[limit] = value end", "own[limit] = value"),
    Mutant(
        "a claim overruns the cap",
        "if limits.is_eligible(call, t) then return t end",
        "if t.ready > 0 then return t end",
    ),
    Mutant(
        "the cap for all is not looked at by a draw",
        "if not t and call.queue.limited == 1 and call.packed[name] then",
        "if false then",
    ),
    Mutant("an expired task takes a place under the cap", "  count_lease(call, t, -1)\n", ""),
    Mutant("idling banks credit", "= t.base + math.max(behind, 0), false", "= t.base, false"),
    Mutant(
        "a choice looks at the account as it was",
        "t.starts + count * call.at, false",
        "t.starts + count * call.at, t.tentative",
    ),
    Mutant("coming back sheds debt", "if behind < 0 and not", "if false and not"),
    Mutant("the wake list starves the backlog", "if woken and not (is_behind and", "if woken and not (false and"),
    Mutant(
        "the backlog starves the wake list",
        "is_behind and random(call) < (limits.is_guaranteed(call, woken) and 1 / 8 or 1 / 2)",
        "is_behind",
    ),
    Mutant(
        "the second draw is ignored",
        "local best = lower(call, draw(call, round), draw(call, round))",
        "local best = draw(call, round), draw(call, round)",
    ),
    Mutant("nobody is drawn again", "for _ = 1, REDRAWS do", "for _ = 1, 0 do"),
    Mutant("the cursor stands still", "q.cursor = (q.cursor + 1) % round.line.slots", "q.cursor = q.cursor"),
    Mutant(
        "of few not all are looked at", "for i = first, first + count - 1 do", "for i = first, first + count - 2 do"
    ),
    Mutant("a tenant is listed twice", "  if t.listed == 1 then return end\n", ""),
    Mutant("a dropped wake entry is not noted", "else touch(call, name).listed = 0 end", "end"),
    Mutant("woken tenants that are not served are lost", "  keep_woken(call, round)\n", ""),
    Mutant(
        "the clock stands still",
        "q.clock, q.level = q.clock + moved, q.level + moved\n  end\n  call.at",
        "q.level = q.level + moved\n  end\n  call.at",
    ),
    Mutant(
        "dispatches do not move the level",
        "q.clock, q.level = q.clock + moved, q.level + moved\n  return",
        "q.clock = q.clock + moved\n  return",
    ),
    Mutant(
        "who is served does not raise the level", "math.max(call.queue.level, vtime_of(call, best))", "call.queue.level"
    ),
    Mutant(
        "tenants begin at the clock",
        "local behind = call.queue.level - vtime",
        "local behind = call.queue.clock - vtime",
    ),
    Mutant("a short task does not move the clock", "if unseen > 0 and t.counted == 1 then", "if false then"),
    Mutant("running leases do not count", "return t.base + age_of(call, t) / t.weight", "return t.base"),
    Mutant(
        "nothing is expected of running leases",
        "math.max(t.leased * expected_of(call, t), age_of(call, t))",
        "age_of(call, t)",
    ),
    Mutant("an old lease does not lower the rate", "if t.leased > 0 then ms =", "if false then ms ="),
    Mutant("the mean is that over tasks", "q.estimate_sq / q.estimate or 0", "q.estimate or 0"),
    Mutant(
        "a tenant within its guarantee competes",
        "is_servable and not limits.is_within_guarantee(call, t) and 1 or 0",
        "is_servable and 1 or 0",
    ),
    Mutant("a dead worker's time is charged", "tonumber(due[2 * i]) - call.queue.lease_ms", "call.now"),
    Mutant("a lease given back teaches", "  if not is_worked then return end\n", ""),
    Mutant("a change of share charges what ran before it", "math.max(began_at, q.epoch_at)", "began_at"),
    Mutant("a hole in the slots", "moved.slot = t.slot", "moved.slot = last"),
    Mutant(
        "weights leak from the sum", "q.weight_sum + sign * t.weight", "q.weight_sum + math.max(sign, 0) * t.weight"
    ),
    Mutant("leases leak from the sum", "q.running + sign * t.leased", "q.running"),
    Mutant("a weight change forgets the sum", "    q.weight_sum = q.weight_sum + weight - before\n", ""),
    Mutant("a weight change counts running leases anew", "  t.base = t.base + vtime - vtime_of(call, t)  --", "  --"),
    Mutant("a tenant keeps its class", "elseif is_outside(rate_of(call, t), 2 ^ t.class) then", "elseif false then"),
    Mutant("draws go by weight alone", "local rate = rate_of(call, account)", "local rate = account.weight"),
    Mutant("tasks may be free", "math.max(until_ms - q.origin - start, 1)", "until_ms - q.origin - start"),
    Mutant("estimates do not learn", "  if not is_worked then return end\n", "  if true then return end\n"),
    Mutant("voids are taken as tasks", "if left[field] > 0 then", "if false then"),
    Mutant("what is taken stays in its list", "redis.call('LTRIM', list, own.count, -1)", "local _ = own"),
    Mutant("a void is passed twice", "redis.call('HINCRBY', void, field, -count) == 0", "false"),
    Mutant("rounds take the same entries", "own.count, own.is_empty = own.count + #entries,", "_, own.is_empty = 0,"),
    Mutant(
        "voids are not credited",
        "if redis.call('HINCRBY', void, field, -1) == 0 then redis.call('HDEL', void, field) end",
        "",
    ),
    Mutant("an emptied list keeps its voids", "    if t.ready == 0 then drop_lists(call, t) end\n", ""),
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
    Mutant("time goes back", "  call.now = math.max(time, q.now)\n", "  call.now = time\n"),
    Mutant("a clock that was ahead stops the queue", "if back > CLOCK_BACK_MS then", "if false then"),
    Mutant(
        "accounts see that the time went back",
        "q.now, q.origin, q.anchored = time, q.origin - back, 1",
        "q.now, q.anchored = time, 1",
    ),
    Mutant("leases of before the time went back go on", "  pull_in_leases(call, limit)\n", ""),
    Mutant(
        "done ids are forgotten at the window's edge",
        "known[id] = records[i] or recent[i] or before[i]",
        "known[id] = records[i] or recent[i]",
    ),
    Mutant("an id twice in a call is stored twice", "    if outcomes[n] == 'ok' then known[id] = true end\n", ""),
    Mutant(
        "replay keeps the old attempts", "attempt = attempts, forgiven = attempts,", "attempt = attempts, forgiven = 0,"
    ),
    Mutant("replay keeps the closed window", "    reopen(call, id, record)\n", ""),
    Mutant(
        "purge leaves the record",
        "    drop_letter(call, id, death)\n  end)",
        "    forget_dead(call, id, death)\n  end)",
    ),
    Mutant("dead letters are kept for ever", "'-inf', call.now - q.dead_keep_ms,", "'-inf', 0,"),
    Mutant("a flood pushes out the others", "'graveyards'), 0, 1, 'REV',", "'graveyards'), 0, 1,"),
    Mutant("the flooder loses more than its lead", "most[2] - (most[4] or 0)", "most[2] - 0"),
    Mutant("there may be one dead letter too many", "q.dead > q.dead_keep do", "q.dead > q.dead_keep + 1 do"),
    Mutant("a tenant's letters outlive their end", "  redis.call('ZREM', key(call, 'deaths:' .. name), id)\n", ""),
    Mutant("a letter is not its tenant's", "  redis.call('ZADD', key(call, 'deaths:' .. t.name), call.now, id)\n", ""),
    Mutant(
        "whose letters are most is not counted", "  redis.call('ZADD', key(call, 'graveyards'), t.dead, t.name)\n", ""
    ),
    Mutant("an empty graveyard is kept", "  if t.dead > 0 then\n", "  if true then\n"),
    Mutant(
        "a walk passes over those of one moment",
        "local low = redis.call('ZCOUNT', deaths, '-inf', '(' .. died_at)",
        "local low = redis.call('ZCOUNT', deaths, '-inf', died_at)",
    ),
    Mutant("a walk shows a letter twice", "  return low\nend", "  return math.max(low - 1, 0)\nend"),
    Mutant(
        "a walk has no end",
        "w.past = redis.call('ZCOUNT', w.deaths, '-inf', w.until_ms)",
        "w.past = redis.call('ZCARD', w.deaths)",
    ),
    Mutant("a tenant sees all letters", "    w.deaths = key(call, 'deaths:' .. args[3])\n", ""),
    Mutant("the reason is not looked at", "(walk.reason == '' or walk.reason == REASONS[reason])", "true"),
    Mutant(
        "younger letters are left out",
        "'(' .. text(math.max(0, call.now - younger))",
        "text(math.max(0, call.now - younger))",
    ),
    Mutant("accounts outlive a change of share", "if epoch ~= q.epoch then  --", "if false then  --"),
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
    Mutant(
        "a fire forgets its window", "due_at, expires_at, max_attempts, extras,", "due_at, 0, max_attempts, extras,"
    ),
    Mutant(
        "a fire forgets its attempts",
        "due_at, expires_at, max_attempts, extras,",
        "due_at, expires_at, call.queue.max_attempts, extras,",
    ),
    Mutant(
        "a fire asks for nothing",
        "max_attempts, extras, window)\n  if outcome",
        "max_attempts, PLAIN, 0)\n  if outcome",
    ),
    Mutant("a duplicate counts as fired", "if outcome == 'ok' then s.last_fired_at", "if true then s.last_fired_at"),
    Mutant(
        "a schedule's known id is enqueued again", "  if known_ids(call, {id})[id] then return 'duplicate' end\n", ""
    ),
    Mutant("a paused schedule stays due", "s.paused == 1 and '+inf' or s.next_at", "s.next_at"),
    Mutant(
        "a schedule that is gone stays due", "  redis.call('ZREM', key(call, 'fires'), tenant .. '/' .. name)\n", ""
    ),
    Mutant("another task moves the time", "if s.timing ~= timing then s.timing", "if true then s.timing"),
    Mutant("a resume does not look at the head", "if not s or s.head ~= args[5] then", "if not s then"),
    Mutant("a tick does not see the next fire", "leases = 0, fires = 0,", "leases = 0,"),
    Mutant("a failed attempt is not told", "  tell_of(call, t, id, 'failed', run.attempt, run.error)\n  if", "  if"),
    Mutant("a rejection is not told", "  tell_of(call, t, id, 'failed', run.attempt, run.error)\n  bury", "  bury"),
    Mutant("a lost lease is not told", "  tell_of(call, t, id, 'failed', run.attempt, REASONS[LEASE_LOST])\n", ""),
    Mutant("an end is not told", "  tell_of(call, t, id, how, attempt, '')\n", ""),
    Mutant(
        "an expired task is told as dead", "reason == EXPIRED and 'expired' or 'dead', attempts", "'dead', attempts"
    ),
    Mutant("it is told of those who did not ask", "if extras_of(call, id).events > 0 then tell(", "if true then tell("),
    Mutant("it is told of batches that did not ask", "if b.events > 0 then tell(", "if true then tell("),
    Mutant("a feed grows for ever", "'MAXLEN', '=', call.queue.events_keep, '0-*'", "'0-*'"),
    Mutant("a feed counts by the clock", "'0-*', 'event'", "'*', 'event'"),
    Mutant("the last event is read again", "string.format('(0-%.0f', after)", "string.format('0-%.0f', after)"),
    Mutant("a gap is not told", "newest - redis.call('XLEN', feed) + 1", "1"),
    Mutant("hunger is never noted", "q.hungry, call.readied = 1, call.readied or q.servable > 0", ""),
    Mutant(
        "more urgent tasks do not stand before one that waits",
        "    before = before + redis.call('LLEN', ready_key(call, t, level))\n",
        "",
    ),
    Mutant(
        "a place among voids is called exact",
        "is_exact = extras_of(call, id).priority, 0, t.voids == 0",
        "is_exact = extras_of(call, id).priority, 0, true",
    ),
    Mutant(
        "limits are told as they hold",
        "return flat(limits.set_for({prefix = keys[1]}, args[3]))",
        "return flat(limits.set_for({prefix = keys[1]}, ''))",
    ),
]


# Found only after thousands of steps.
LATE = {
    "a task expires a ms late",
    "the wake list starves the backlog",
    "the backlog starves the wake list",
    "a tenant is listed twice",
    "woken tenants that are not served are lost",
    "a hole in the slots",
    "a tenant keeps its class",
    "the mean is that over tasks",
    "draws go by weight alone",
    "a wider cap for all lets nobody in",
    "a sweep has no end",
    "an emptied list keeps its voids",
    "a task frees another one's key",
    "later batches of a name are the same",
    "every death calls back",
    "an expired held task keeps its entry",
    "a guarantee sheds debt",
    "a fire passes the quota",
    "what does not start takes a token",
    "the flooder loses more than its lead",
    "the cap for all is not looked at by a draw",
    "a walk passes over those of one moment",
    "a schedule's known id is enqueued again",
}
LONG = pytest.mark.timeout(600)
CASES = [pytest.param(mutant, marks=LONG if mutant.name in LATE else []) for mutant in MUTANTS]


def test_a_text_to_mutate_occurs_once() -> None:
    source = library.source()
    assert [mutant.name for mutant in MUTANTS if source.count(mutant.text) != 1] == []


@pytest.mark.deep
@pytest.mark.one_store
@pytest.mark.parametrize("mutant", CASES, ids=[mutant.name.replace(" ", "-") for mutant in MUTANTS])
def test_a_planted_bug_is_found(redis_client: redis.Redis, mutant: Mutant) -> None:
    with pytest.raises((AssertionError, redis.ResponseError, KeyError, struct.error)):
        walk(redis_client, WALKS * (10 if mutant.name in LATE else 1), (mutant.text, mutant.instead))


def walk(client: redis.Redis, walks: int, *changes: tuple[str, str]) -> None:
    """Walk the machine from fixed seeds; every other one draws its few tenants. The first difference ends it."""
    load_variant(client, "mutant", *changes)
    if not any(FEW_VARIANT[0] in text for text, _ in changes):
        changes = (FEW_VARIANT, *changes)
    load_variant(client, "drawing_mutant", *changes)
    machines = [
        type("MutantMachine", (QueueMachine,), {"client": client, "version": version, "few": few})
        for version, few in (("mutant", 16), ("drawing_mutant", 1))
    ]
    try:
        for seed in range(walks):
            path = Walk(machines[seed % 2](), seed)
            for _ in range(STEPS):
                path.step()
    finally:
        client.function_delete("fairq_mutant")
        client.function_delete("fairq_drawing_mutant")


@pytest.mark.one_store
def test_without_a_planted_bug_the_same_walks_find_nothing(redis_client: redis.Redis) -> None:
    walk(redis_client, 6)
