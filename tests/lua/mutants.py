"""Planted bugs: the table of them. Each is put into the library's text, and a random walk must find it.

A mutant is what it breaks, a text that occurs once in the library, and what stands there in its place. Where each is
found stands in planted.json: `python -m tests.lua.planted` writes it. To drop a mutant, delete its row here and there.
Where the file has null, the search has found nothing yet: it goes on when it is run again. What it does not find is for
a direct test, and is no row here. Of several bugs in one function those stand here that are found late: what finds them
finds the others.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A planted bug."""

    name: str
    text: str
    instead: str

    @property
    def change(self) -> tuple[str, str]:
        return self.text, self.instead


ODD = {  # who must be looked at more closely: the field that says so
    "a blocked tenant": "blocked",
    "a limited tenant": "limited",
    "a tenant with groups": "grouped",
    "a tenant that was kept out": "cause",
}


def odd_by(*fields: str) -> str:
    """Return the text that makes a tenant odd by these fields."""
    return f"return {' or '.join(f'details.{field} > 0' for field in fields)}\n"


MUTANTS = [
    Mutant(
        "an ended lease is settled again",
        " or state ~= LEASED and state ~= STOPPING then\n    return refusal",
        " then\n    return refusal",
    ),
    Mutant("numbers do not go on with the time", "(call.now - FIRST_MS) * PER_MS)", "0)"),
    Mutant("the last number is not kept", "  call.queue.last_lease = lease\n", ""),
    Mutant(
        "a claim that takes nothing uses up a number",
        "  if #claim.ids > 0 then leases.write_new(",
        "  call.queue.last_lease = claim.lease\n  if #claim.ids > 0 then leases.write_new(",
    ),
    Mutant(
        "a task that ran out is remembered by its owner",
        "settlements.cancel(call, account, id, is_reaped and 0 or lease,",
        "settlements.cancel(call, account, id, lease,",
    ),
    Mutant(
        "a purge cancels running tasks",
        "    if not may_stop and run and leases.is_leased(run.state) then return 'running' end\n",
        "",
    ),
    Mutant(
        "a purge passes over groups",
        "  for _, priority in ipairs(redis.call('ZRANGE', call.prefix .. 'priorities:' .. account.name, 0, -1)) do\n"
        "    stages[",
        "  for _, priority in ipairs({}) do\n    stages[",
    ),
    Mutant(
        "a dropped tenant stays on the wake list",
        "  if account.is_on_wake_list == 1 then redis.call('LREM'",
        "  if false then redis.call('LREM'",
    ),
    Mutant(
        "the limit is not looked at",
        "if batch and batch.max_running > 0 and batch.admitted >= batch.max_running then",
        "if false then",
    ),
    Mutant("a place is never given back", "if batch then batch.admitted = batch.admitted - 1 end", ""),
    Mutant("free places stay free", "      refill(call, id, batch)\n", ""),
    Mutant(
        "later batches of a name are the same",
        "return batch.created_at == asked.opened_at and batch or nil",
        "return batch",
    ),
    Mutant(
        "tasks are added to closed batches", "if batch.state ~= OPENED then refuse('batch_closed', 'batch') end", ""
    ),
    Mutant(
        "success is called back after a death", "if batch.done == batch.total then call_back", "if true then call_back"
    ),
    Mutant(
        "an expired pending task keeps its entry",
        "if not batches.of_task(call, id) or redis.call('ZREM', batches.pending_key(call, id), id) == 0 then",
        "if true then",
    ),
    Mutant(
        "a result is kept for ever",
        "out[i] = result and tonumber(until_ms) > call.now and result or false",
        "out[i] = result or false",
    ),
    Mutant("a dead task holds its key", "  task_options.free_key(call, account.name, id)\n", ""),
    Mutant("a task frees another one's key", "if redis.call('GET', at) == '0 ' .. id then", "if true then"),
    Mutant(
        "a key is held for ever", "(until_ms == '0' and id ~= call.ending or tonumber(until_ms) > call.now)", "true"
    ),
    Mutant("priorities are served in any order", "return priority * PRIORITY_SPAN + order end", "return order end"),
    Mutant(
        "a priority that is opened is not noted",
        "    redis.call('ZADD', call.prefix .. 'priorities:' .. account.name, priority, priority)\n",
        "",
    ),
    Mutant("options outlive their task", "  redis.call('HDEL', call.prefix .. 'task_options', id)\n", ""),
    Mutant(
        "a task expires a ms late",
        "expires_at <= call.sure then\n      leave",
        "expires_at < call.sure then\n      leave",
    ),
    Mutant(
        "expired tasks are charged",
        "    picks.unpick(call, round, i, 0)\n    picks.pass_over",
        "    picks.pass_over",
    ),
    Mutant("a late task is no turn", "math.max(0, turn - accounts.vtime_of(call, account))", "0"),
    Mutant(
        "a late task stays counted", "  account.ready, call.queue.ready = account.ready - 1, call.queue.ready - 1\n", ""
    ),
    Mutant(
        "a tenant's limit is not looked at",
        "return max_running == 0 or account.leased < max_running",
        "return true",
    ),
    Mutant(
        "a closed queue is served", "limit and queue.blocked == 0 and", "limit and bit.band(queue.blocked, 1) == 0 and"
    ),
    Mutant(
        "resuming opens closed hours",
        "limits.block(target, reason, is_blocked)",
        "target.blocked = is_blocked and reason or 0",
    ),
    Mutant("every server changes opening hours", "if args[7] ~= '' and args[7] ~= revision then return false end", ""),
    Mutant(
        "a tenant is kept out since its first time",
        "if cause ~= 0 and (account.slot ~= OUT or details.cause == 0) then",
        "if cause ~= 0 and details.cause == 0 then",
    ),
    Mutant(
        "a tenant over its limit keeps the slot",
        "  accounts.touch(call, account)\n  return true\n",
        "  return true\n",
    ),
    Mutant("what does not start takes a token", "  limits.spend(call, account, -1)\n", ""),
    Mutant(
        "tokens gather for ever",
        "details.theoretical_arrival = math.max(details.theoretical_arrival, call.now) + count",
        "details.theoretical_arrival = details.theoretical_arrival + count",
    ),
    Mutant("a tenant out of tokens stays out", "  if is_due.parked then limits.unpark(call, part) end\n", ""),
    Mutant("a fast tenant comes for every token", "(refill - 1) * interval", "0"),
    Mutant(
        "a new rate waits for the old one's end",
        "    limits.meter(call, account)\n  end\n  close.call(call)\n  return flat",
        "  end\n  close.call(call)\n  return flat",
    ),
    Mutant(
        "a block begins a slot later",
        "span.changed, #tags, 4 * before",
        "span.changed, #tags, 4 * before + 4",
    ),
    Mutant(
        "a guarantee is not kept",
        "return has_own(call, account) and account.leased < limits.of(call, account).guaranteed",
        "return false",
    ),
    Mutant(
        "a claim serves a guarantee once",
        "    round.woken[#round.woken + 1], account.is_on_wake_list = account, 1  --",
        "    local _ = account  --",
    ),
    Mutant(
        "a guarantee sheds debt",
        "account.base = account.base + math.max(behind, 0)",
        "account.base = account.base + behind",
    ),
    Mutant(
        "a guaranteed tenant keeps its slot",
        "    if account.slot > 0 then free_slot(call, account) end\n    wake",
        "    wake",
    ),
    Mutant("quotas are not looked at", "  if #new.records > 0 then arrivals.check_quotas(call, new) end\n", ""),
    Mutant("claims tell no run timeout", ", {}, call.queue.run_timeout_ms}\n", ", {}, 0}\n"),
    Mutant("a known tenant is one too many", "if not call.details[new.tenant] and redis", "if redis"),
    Mutant("own limits are those for all", "with_defaults(limits.set_for(call, account.name), for_all)", "for_all"),
    Mutant("the wake list starves the backlog", "if not woken or best and", "if not woken or false and"),
    Mutant(
        "the backlog starves the wake list",
        "return calls.random(call) < (limits.is_guaranteed(call, woken) and 1 / 8 or 1 / 2)",
        "return true",
    ),
    Mutant("the due are counted by another time", "if time <= due_until + step / 2 then", "if time <= due_until then"),
    Mutant("draws go on for longer", "REDRAWS * wanted + FIRST", "2 * REDRAWS * wanted + FIRST"),
    Mutant("blocks are of one slot", "and width < WIDEST do", "and false do"),
    Mutant("a tenant is is_on_wake_list twice", "  if account.is_on_wake_list == 1 then return end\n", ""),
    Mutant("a dropped wake entry is not noted", "      accounts.touch(call, account).is_on_wake_list = 0\n", ""),
    Mutant("woken tenants that are not served are lost", "  if #woken > 0 then keep_woken(call, round) end\n", ""),
    Mutant(
        "the clock stands still",
        "if queue.weight_sum > 0 then calls.move_clock(queue, passed",
        "if queue.weight_sum > 0 then queue.level = queue.level + passed * queue.running / queue.weight_sum "
        "calls.move_clock(queue, 0 * passed",
    ),
    Mutant(
        "lost leases leave the level where they moved it",
        "true, queue.level + by",
        "true, queue.level",
    ),
    Mutant("lost leases take from the level without end", "  if call.lowered then charges.bound_level(call) end\n", ""),
    Mutant(
        "a jump of the clock is service",
        "  jump = jump - math.max(queue.lease_ms, CLOCK_BACK_MS)\n",
        "  jump = 0\n",
    ),
    Mutant(
        "nothing is expected of running leases",
        "local age, least = leased * at - starts, leased * expected",
        "local age, least = leased * at - starts, 0",
    ),
    Mutant(
        "the mean is that over tasks",
        "call.mean = queue.estimate_sq / queue.estimate end",
        "call.mean = queue.estimate end",
    ),
    Mutant(
        "a tenant within its guarantee competes",
        "return account.leased <= guaranteed and guaranteed > 0 and ELIGIBLE or COMPETES",
        "return COMPETES",
    ),
    Mutant(
        "a change of share charges what ran before it",
        "local start, moves_clock = queue.epoch_at,",
        "local start, moves_clock = began_at,",
    ),
    Mutant(
        "books outlive a change of share",
        "books.epoch, books.delivered, books.entitled = queue.epoch, 0, 0",
        "books.epoch = queue.epoch",
    ),
    Mutant(
        "a weight change counts running leases anew",
        "leases that run.\n  account.base = account.base + vtime - accounts.vtime_of(call, account)\n",
        "leases that run.\n",
    ),
    Mutant(
        "draws go by weight alone",
        "    if ms > 1 then rate = weight / ms end\n",
        "",
    ),
    Mutant(
        "what is taken stays in its list",
        "    if count > 0 then redis.call('ZREMRANGEBYRANK', at, 0, count - 1) end\n",
        "",
    ),
    Mutant(
        "expired entries stay counted",
        "    turns.take_out(call, account, asked.priority, group, id)\n  end\n  count_ready(call, account, -1)\n",
        "    turns.take_out(call, account, asked.priority, group, id)\n  end\n",
    ),
    Mutant(
        "a replaced task stays",
        "  for _, task in ipairs(new.replaced) do waiting.cancel_one(call, task.id, task.record, task.run) end\n",
        "",
    ),
    Mutant("replaced payloads weigh as before", "  new.freed_bytes = new.freed_bytes + bytes", "  new.freed_bytes = 0"),
    Mutant("tasks served from groups stay counted", "        details.grouped = details.grouped - source.taken\n", ""),
    Mutant(
        "an empty group keeps its turn",
        "  if redis.call('EXISTS', at) == 0 then turns.leave(call, account, priority, {LOOSE .. group}) end\n",
        "",
    ),
    Mutant("loose tasks have no turn", "  if line then see_loose(call, line) end\n", ""),
    Mutant(
        "each claim gives loose tasks a new turn",
        "stand_in_line(line, LOOSE, turn and tonumber(turn) or line.clock + 1)",
        "stand_in_line(line, LOOSE, line.clock + 1)",
    ),
    Mutant(
        "the head of a group is its end",
        "    if is_at_head then order = -order end\n",
        "",
    ),
    Mutant("a batch is no group", "return asked.group ~= '' and asked.group or asked.batch", "return asked.group"),
    Mutant(
        "groups that were not read have no turn",
        "while not line.is_read and (not member or is_sooner(line.seen_to, line.last, line.turn[member], member)) do",
        "while not line.is_read and not member do",
    ),
    Mutant(
        "one attempt too few",
        "counted(run) >= run.max_attempts",
        "counted(run) >= run.max_attempts - 1",
    ),
    Mutant("a task has no cap of its own", "asked.retry_cap > 0 and asked.retry_cap or ", ""),
    Mutant("a lost lease never makes a task wait", "before > 0 and longest_wait_ms", "false and longest_wait_ms"),
    Mutant("a limit of 0 is the queue's", "if options.max_attempts < 0 then", "if options.max_attempts <= 0 then"),
    Mutant(
        "releases give a task without a limit one",
        "return max_attempts > 0 and max_attempts + uncounted or -uncounted",
        "return max_attempts + uncounted",
    ),
    Mutant(
        "release is not uncounted_attempts",
        "  run.uncounted_attempts = run.uncounted_attempts + 1\n  if message",
        "  if message",
    ),
    Mutant(
        "ended leases stay in the set",
        "  if #untimed > 0 then redis.call('ZREM', call.prefix .. 'leases', unpack(untimed)) end\n",
        "",
    ),
    Mutant(
        "leases are reaped early",
        "'ZRANGE', call.prefix .. name, '-inf', call.at,",
        "'ZRANGE', call.prefix .. name, '-inf', call.at + 1,",
    ),
    Mutant("a tenant with more due tasks stays before the others", "has_more and call.now or redis", "redis"),
    Mutant(
        "a later start hides an earlier one",
        "call.prefix .. 'due', 'LT', first, account.name)\n  accounts.count",
        "call.prefix .. 'due', first, account.name)\n  accounts.count",
    ),
    Mutant("replay keeps the closed window", "    reopen(call, id, record, header)\n", ""),
    Mutant(
        "purge leaves the record",
        "    places.drop_letter(call, id, death)\n  end)",
        "    places.take_out_dead(call, id, death)\n  end)",
    ),
    Mutant("the flooder loses more than its lead", "most[2] - (most[4] or 0)", "most[2] - 0"),
    Mutant(
        "there may be one dead letter too many",
        "queue.dead > queue.dead_keep do",
        "queue.dead > queue.dead_keep + 1 do",
    ),
    Mutant(
        "whose letters are most is not counted",
        "redis.call('ZADD', call.prefix .. 'dead_counts', accounts.count(call, account, 'dead', 1), account.name)\n",
        "accounts.count(call, account, 'dead', 1)\n",
    ),
    Mutant("an empty dead count is kept", "  if left > 0 then\n", "  if true then\n"),
    Mutant(
        "a walk passes over those of one moment",
        "local low = redis.call('ZCOUNT', deaths, '-inf', '(' .. died_at)",
        "local low = redis.call('ZCOUNT', deaths, '-inf', died_at)",
    ),
    Mutant(
        "a walk has no end",
        "walk.left = redis.call('ZCOUNT', walk.deaths, '-inf', walk.until_ms)",
        "walk.left = redis.call('ZCARD', walk.deaths)",
    ),
    Mutant(
        "an exhausted task has no traceback",
        "run, reason, traceback) end",
        "run, reason, reason == REJECTED and traceback) end",
    ),
    Mutant("a rejected task has no traceback", "message, traceback, REJECTED)", "message, nil, REJECTED)"),
    Mutant("the reason is not looked at", "(walk.reason == '' or walk.reason == REASONS[reason])", "true"),
    Mutant(
        "a paused schedule fires",
        "revision ~= as_read or schedule.paused == 1 or",
        "revision ~= as_read or",
    ),
    Mutant(
        "a window that was dropped comes back when its start moves",
        "local moves = expires_at > 0 and header.features % IS_LARGE >= END_MOVES",
        "local moves = header.features % IS_LARGE >= END_MOVES",
    ),
    Mutant(
        "a schedule's known id is enqueued again",
        "  if redis.call('HEXISTS', call.prefix .. 'tasks', id) == 1 then return 'duplicate' end\n",
        "",
    ),
    Mutant("a paused schedule stays due", "schedule.paused == 1 and '+inf' or schedule.next_at", "schedule.next_at"),
    Mutant("a schedule that is gone stays due", "  redis.call('ZREM', call.prefix .. 'fires', field)\n", ""),
    Mutant(
        "another task moves the time",
        "if schedule.timing ~= timing then schedule.timing",
        "if true then schedule.timing",
    ),
    Mutant(
        "a resume does not look at the head",
        "if not schedule or revision ~= args[5] then",
        "if not schedule then",
    ),
    Mutant(
        "tasks that did not ask have events",
        "if task_options.of(call, id).events > 0 then feeds.tell(",
        "if true then feeds.tell(",
    ),
    Mutant(
        "an expired task is not dead to its batch", "  if how == 'expired' then batch.dead = batch.dead + 1 end\n", ""
    ),
    Mutant(
        "a replayed task stays expired to its batch",
        "  if reason == EXPIRED then batch.expired = batch.expired - 1 end\n",
        "",
    ),
    Mutant("batches in all states are listed", "(args[4] == '' or args[4] == BATCH_STATES[batch.state])", "true"),
    Mutant("a feed grows for ever", "'MAXLEN', '=', length, '0-*'", "'0-*'"),
    Mutant("the last event is read again", "string.format('(0-%.0f', after)", "string.format('0-%.0f', after)"),
    Mutant("tasks for a server are covered", "    call.notify = '1 ' .. server\n", "    call.notify = false\n"),
    Mutant(
        "limits are told as they hold",
        "return flat(limits.set_for({prefix = keys[1] .. ':'}, args[3]))",
        "return flat(limits.set_for({prefix = keys[1] .. ':'}, ''))",
    ),
    Mutant(
        "two tenants get the same number",
        "  queue.numbers = queue.numbers + 1\n",
        "  queue.numbers = math.max(queue.numbers, 1)\n",
    ),
    Mutant(
        "slots are written one too far",
        "redis.call('SETRANGE', at, 4 * slot - 4, tag)",
        "redis.call('SETRANGE', at, 4 * slot, tag)",
    ),
    Mutant(
        "a move does not see the slots that the call has changed",
        "return changed and changed[slot]\n    or redis.call('GETRANGE'",
        "return redis.call('GETRANGE'",
    ),
    Mutant(
        "a tenant that was odd stays so",
        "account.is_odd = are_odd(details) and",
        "account.is_odd = (account.is_odd > 0 or are_odd(details)) and",
    ),
    *(
        Mutant(f"{who} is not odd", odd_by(*ODD.values()), odd_by(*(each for each in ODD.values() if each != field)))
        for who, field in ODD.items()
    ),
    Mutant(
        "a sweep does not look for delayed tasks",
        "    if first then redis.call('ZADD', call.prefix .. 'due', 'LT', first, account.name) end\n",
        "",
    ),
    Mutant(
        "delayed tasks wait for the time that went back",
        "queue.now, queue.origin, queue.sweeping = time, queue.origin + passed, SWEEP_WANTED",
        "queue.now, queue.origin = time, queue.origin + passed",
    ),
    Mutant("a class without tenants keeps its string", "  put_in_slot(call, class, last, false)\n", ""),
    Mutant(
        "those that come again come before their equals",
        "  seen[last] = tag\n",
        "  of_time[time], seen[tag] = tag, of_time[time]\n",
    ),
    Mutant("those that come again replace their equals", "  while seen[last] do last = seen[last] end\n", ""),
    Mutant("those that come again come at once", "if times[middle] < time then place", "if false then place"),
    Mutant("of equals only the last comes", "round.next + 1, round.seen[tag]\n", "round.next + 1, tag\n"),
    Mutant("of equals only the last is served packed", "= place + 1, round.seen[tag]\n", "= place + 1, tag\n"),
    Mutant("the last task of a tenant leaves it packed", "is_odd == 1 or ready == 1 or", "is_odd == 1 or"),
    Mutant("a tenant with details is served packed", "is_odd == 1 or ready == 1 or", "ready == 1 or"),
    Mutant("a tenant that has changed is served unchanged", "    if call.accounts[tag] then break end\n", ""),
    Mutant(
        "a tenant that is served packed stays in a class that it has left",
        ", leased) == class\n    round.names",
        ", leased) ~= nil\n    round.names",
    ),
    Mutant(
        "who is served packed does not raise the level",
        "    if vtime > level then level = vtime end\n",
        "",
    ),
    Mutant("who is alone is served beyond its tasks", "math.min(wanted - count, ready - 1)", "wanted - count"),
    Mutant("others wait while one is served packed", "if not time then often", "if true then often"),
    Mutant("those that come again wait meanwhile", "      time = times[place]\n", ""),
    Mutant("loans shorten a round", "most = wanted + queue.loans", "most = wanted"),
    Mutant(
        "limits for all, a reserve and loans are not seen",
        "queue.limited + queue.reserve + queue.loans == 0",
        "true",
    ),
    Mutant("who is drawn and not served is lost", "  if best and not is_full then draws.untake(round, best) end\n", ""),
    Mutant("of equals the wrong one is lost", "  round.of_time[round.times[round.next]] = tag\n", ""),
    Mutant(
        "whose leases run stays in a class that it has left",
        "leased == 1 and estimate > 0  -- then",
        "leased > 0 and estimate > 0  -- then",
    ),
    Mutant(
        "who has no estimate stays in a class that it has left",
        "leased == 1 and estimate > 0  -- then",
        "leased == 1 -- then",
    ),
    Mutant(
        "accounts of before a change of share are compared",
        "if found[i] and not is_renewed(call, found[i]) then",
        "if false then",
    ),
    Mutant("a renewal is shorter than the lease", "math.max(run.lasts, call.queue.lease_ms)", "call.queue.lease_ms"),
    Mutant("a lost lease is charged by the time of others", "(lease and lease.lasts or 0)", "call.queue.lease_ms"),
    Mutant(
        "an extended lease that ended stays in the set",
        "    write('ZREM', call.prefix .. 'extended', call.ended)\n",
        "",
    ),
    Mutant(
        "a later lease ends with the bundle",
        "lease.lease == number and lease.is_extended == 0 and",
        "lease.is_extended == 0 and",
    ),
    Mutant(
        "a claim that is made again takes more", "    if recall(call, asked)", "    if false and recall(call, asked)"
    ),
    Mutant("a claim that is made again gives later leases", "and run.lease == lease and records", "and records"),
    Mutant(
        "runs are read over what the call has changed",
        "  if next(packed) then\n",
        "  if false then\n",
    ),
    Mutant(
        "a twin is told of what is not written yet",
        "  leases.write(call)  -- it may be this call that settled it\n",
        "",
    ),
    Mutant(
        "a tick does not see the next end of an extended lease",
        "leases = queue.origin, extended = queue.origin,",
        "leases = queue.origin,",
    ),
    Mutant(
        "marks of one call are alike", "if marks.lease ~= lease or marks.how ~= how then", "if marks.packed == '' then"
    ),
    Mutant(
        "a mark is trimmed a minute early",
        "return (queue.minute + 2) * MINUTE_MS",
        "return (queue.minute + 1) * MINUTE_MS",
    ),
    Mutant(
        "a minute without marks is not counted",
        "queue.minute, limit, call.is_changed = queue.minute + 1, limit - 1, true",
        "queue.minute, call.is_changed = queue.minute + 1, true",
    ),
    Mutant(
        "marks of before the first minute are not found",
        "if queue.remembered == 0 or minute < queue.minute then",
        "if queue.remembered == 0 then",
    ),
    Mutant(
        "a large payload outlives its task",
        "  if marks.large then write('HDEL', call.prefix .. 'payloads', marks.large) end\n",
        "",
    ),
    Mutant(
        "a dead letter is told without its large payload",
        "  if record ~= '' then record = records.whole(call, id, record) end\n",
        "",
    ),
    Mutant(
        "a task is told without its large payload", "    record = record and records.whole(call, ids[i], record)\n", ""
    ),
    Mutant(
        "a large payload weighs nothing",
        "#record or position - 1 + struct.unpack('<I', record, position)",
        "#record or position - 1",
    ),
    Mutant(
        "tasks of one call are all large or none",
        "  local kind = is_large and 'large_header' or 'header'\n",
        "  local kind = 'header'\n",
    ),
    Mutant(
        "what a reply has no room for is turned round", "  for i = #returned, 1, -1 do", "  for i = 1, #returned do"
    ),
    Mutant("a purged task weighs", "    accounts.add_bytes(call, account, -bytes)\n    records.mark", " records.mark"),
    Mutant(
        "a purged task is told as cancelled",
        "    records.mark(call, id, 'dead',",
        "    records.mark(call, id, 'cancelled',",
    ),
    Mutant(
        "letters that a claim pushes out stay tasks",
        "  if call.marks then records.write_marks(call) end  -- of",
        "  -- of",
    ),
    Mutant(
        "a lost lease is remembered as the end of a letter",
        "return (death.reason == EXHAUSTED or death.reason == REJECTED) and death.lease or 0",
        "return death.lease",
    ),
    Mutant("a new task weighs nothing", "  accounts.add_bytes(call, account, new.bytes)\n", ""),
    Mutant(
        "a task's run does not say that it asks for more",
        "  return features, max_attempts, expires_at, acc",
        "  return features - features % 2, max_attempts, expires_at, acc",
    ),
    Mutant(
        "a claim does not look for what its tasks ask",
        "  if has_options(features) then note_asking(call, claim, id) end\n  if features < IS_LARGE",
        "  if features < IS_LARGE",
    ),
    Mutant(
        "an ack keeps no result",
        "      task_options.keep_result(call, account, id, args[at + 3])\n",
        "",
    ),
    Mutant(
        "a settlement finds that no server asks for more",
        "if not has_options(features[i]) then known[id] = PLAIN elseif",
        "if true then known[id] = PLAIN elseif",
    ),
    Mutant(
        "a guaranteed lease is a loan",
        "if not reserve.is_full(call) or limits.is_guaranteed(call, account) then",
        "if not reserve.is_full(call) then",
    ),
    Mutant(
        "a loan that ended is counted",
        "  account.loan, call.queue.loans = NO_LOAN, call.queue.loans - 1\n",
        "  account.loan = NO_LOAN\n",
    ),
    Mutant("who has tasks running is among the idle", "  write('ZREM', call.prefix .. 'idle', others)\n", ""),
    Mutant("the last slot is kept", "math.max(1, queue.slots - math", "math.max(0, queue.slots - math"),
    Mutant("loans count as ordinary leases", "return queue.leased - queue.loans >=", "return queue.leased >="),
    Mutant(
        "a gift moves the clock while it runs",
        "if account.standing == COMPETES and account.loan ~= accounts.GIFT then",
        "if account.standing == COMPETES then",
    ),
    Mutant("a gift's time does not stand still", "SHARE_COUNT or account.loan == GIFT then", "SHARE_COUNT then"),
    Mutant("a gift is charged as a dispatch", "  if account.loan == GIFT then return false end\n", ""),
    Mutant(
        "a repaid gift does not run",
        "queue.running = queue.running + accounts.running_of(account) - running end\n",
        "end\n",
    ),
    Mutant(
        "a gift that stops competing is counted",
        "queue.running + sign * accounts.running_of(account)",
        "queue.running + sign * account.leased",
    ),
    Mutant(
        "who has leases stands on the wake list",
        "return call.queue.reserve == 0 or account.leased == 0 or limits",
        "return true or limits",
    ),
    Mutant(
        "those that this call has touched are overlooked",
        "    if may_borrow(call, account) then line[#line + 1] = account end\n",
        "",
    ),
    Mutant("the idle stay when there is no reserve", "  redis.call('UNLINK', call.prefix .. 'idle')\n", ""),
    Mutant(
        "a change of share keeps the old times of the idle",
        "if queue.reserve ~= old_reserve or queue.reserve > 0 and queue.share ~= old_share then",
        "if queue.reserve ~= old_reserve then",
    ),
    Mutant(
        "room is told of while there is none",
        "queue.servable > 0 and not reserve.is_full(call)\nend\n\nlocal function is_idle",
        "queue.servable > 0\nend\n\nlocal function is_idle",
    ),
    # Found in queues that are emptied, and forgotten.
    Mutant("a queue is forgotten at once", "math.max(queue.now, made_at) + for_ms", "made_at + for_ms"),
    # Found where errors are counted.
    Mutant(
        "a cancelled task keeps its error's bytes",
        "accounts.add_bytes(call, account, -bytes - (run and #run.error or 0))",
        "accounts.add_bytes(call, account, -bytes)",
    ),
    Mutant(
        "a priority without groups stays named",
        "    redis.call('ZREM', call.prefix .. 'priorities:' .. account.name, priority)\n",
        "",
    ),
    Mutant(
        "loose tasks of other priorities take turns",
        "      source.last_score = text(priorities.score(line.priority + 0.5, 0))\n",
        "",
    ),
    Mutant("more urgent loose tasks wait for groups", "text(priorities.score(before - 0.5, 0))", "'-inf'"),
    Mutant(
        "loose tasks have a turn before their priority is served",
        "    if #ids < wanted then turns.take(",
        "    if #ids <= wanted then turns.take(",
    ),
    # Found where a claim follows an enqueue in one call.
    Mutant(
        "who has woken is written twice",
        "call.to_wake, call.messages, call.readied = {}, false, false",
        "call.messages, call.readied = {}, false",
    ),
    Mutant("those that wait are told of claimed tasks", "  call.notify = false\n  close.call", "  close.call"),
    Mutant("a joined claim tells nobody to come again", "  call.notify = nil  -- all servers, as in other calls\n", ""),
    Mutant(
        "details are kept as an enqueue found them",
        "2], details.packed = account.name, new, new",
        "2] = account.name, new",
    ),
    # Found where a task ends with links.
    Mutant(
        "links wake no server",
        "  enqueue.store_decided(call, new)\n  close.call(call)\n  return 'ok'",
        "  enqueue.store_decided(call, new)\n  close.go_on(call)\n  return 'ok'",
    ),
    Mutant(
        "a lease that was extended has no links",
        "if not lease or lease.lease ~= number or",
        "if not lease or lease.lease ~= number or lease.is_extended == 1 or",
    ),
    # Found where claims are costly, and where clocks are behind.
    Mutant(
        "a claim goes on beyond its bound of late tasks",
        " and #claim.late < LATE_PER_CALL and call.costly",
        " and call.costly",
    ),
    Mutant(
        "a claim buries more late tasks than it may",
        "claim.bytes < PAGE_BYTES and #claim.late < LATE_PER_CALL then",
        "claim.bytes < PAGE_BYTES then",
    ),
    Mutant(
        "a round of picks has no bound of costly tenants",
        " and queue.servable > 0 and call.costly < COSTLY_PER_CALL do",
        " and queue.servable > 0 do",
    ),
    Mutant("tenants with groups cost nothing", "call.costly = call.costly + 1 end", "call.costly = call.costly end"),
    Mutant(
        "a tenant with groups costs in each round",
        "if call.touched[account.tag] == nil and accounts.has_groups",
        "if accounts.has_groups",
    ),
    Mutant("a copy that may be made anew is forgotten", "is_made_anew(call, id) and again or gone", "gone"),
    Mutant("what a handler enqueues is forgotten soon", " and long_kept or short_kept, id)", " and short_kept, id)"),
    Mutant(
        "a claim finds tasks late by a clock that nobody confirms",
        "expires_at <= call.sure then",
        "expires_at <= call.now then",
    ),
    Mutant(
        "letters go by a clock that nobody confirms", "call.sure - queue.dead_keep_ms", "call.now - queue.dead_keep_ms"
    ),
    Mutant(
        "marks go by a clock that nobody confirms",
        "next_trim_at(queue) <= call.sure",
        "next_trim_at(queue) <= call.now",
    ),
    Mutant(
        "a repair loses what failures said of bytes",
        "  accounts.add_bytes(call, account, #run.error)\n  leases.set_run",
        "  leases.set_run",
    ),
    Mutant(
        "a repair forgets when a retry starts",
        "return at or not run and header.start_at",
        "return not run and header.start_at",
    ),
    Mutant(
        "a repair does not count templates",
        "    add_bytes(call, flat[i]:match('^[^/]*'), accounts.bytes_of(flat[i], #flat[i + 1]))\n",
        "",
    ),
    Mutant("a deletion leaves a key", "return not LAST[name] end", "return not LAST[name] and name ~= 'ends' end"),
    Mutant("what no row tells is in no history", "  add_service(rows, '', left, left)\n", ""),
    Mutant(
        "a row tells more than the queue gave",
        "row[field] = math.min(growth[field], left[field])",
        "row[field] = growth[field]",
    ),
    Mutant(
        "waiting times replace those before",
        "if more.waits ~= '' then row.waits = add_waits(row.waits, more.waits) end",
        "if more.waits ~= '' then row.waits = more.waits end",
    ),
]
