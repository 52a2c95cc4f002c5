-- The verb `claim`: the fair pick (10_tenants.lua), and the lease that is written in the same atomic step.
--
-- A claim works in rounds: pick tenants (nothing leaves a slot meanwhile, so the darts stay true), take their tasks,
-- seat the tenants that were emptied. All of that only reads; then comes one block of writes (`write_claim`), so that
-- an error, whatever it is, finds the queue as it was. A second round is needed when the first served all there was
-- outside the wake list (whoever is served from there takes a slot only afterwards), or entries were void or expired,
-- or darts ran out.

local ROUNDS = 8
local RECALLED = 10000
local HEAD = 6  -- values before the leases in the reply
local LEASES_SINCE, LEASES_PER_MS = 1735689600000, 32  -- lease numbers follow the time since then (2025-01-01 UTC, ms)

local function move_names(from, to, count)
  while count > #to and #from > 0 do to[#to + 1] = table.remove(from, 1) end
end

-- The names at the head of the wake list as earlier rounds have left it: those that they did not serve, the list's own,
-- those whose turn is to come again.
local function take_names(call, wanted)
  local wake, names = call.wake, {}
  move_names(wake.unserved, names, wanted)
  if #names < wanted then
    local own = redis.call('LRANGE', key(call, 'wake'), wake.taken, wake.taken + wanted - #names - 1)
    wake.taken = wake.taken + #own
    move_names(own, names, wanted)
  end
  move_names(wake.again, names, wanted)
  return names
end

-- The tenants at the head of the wake list; those that have left it (see rule 3) are dropped.
local function next_woken(call, wanted)
  local names, woken = take_names(call, wanted), {}
  read_tenants(call, names)
  for _, name in ipairs(names) do
    local t = tenant(call, name)
    if t.slot == AWAKE and limits.is_eligible(call, t) then woken[#woken + 1] = t else touch(call, name).listed = 0 end
  end
  return woken
end

-- Those that were not served keep their place; those whose turn is to come again go behind all others.
local function keep_woken(call, round)
  local wake, next_woken, popped = call.wake, round.next_woken, round.popped
  for i = popped, next_woken, -1 do table.insert(wake.unserved, 1, round.woken[i].name) end
  for i = math.max(next_woken, popped + 1), #round.woken do wake.again[#wake.again + 1] = round.woken[i].name end
end

local function write_woken(call)
  local wake, list, unserved = call.wake, key(call, 'wake'), {}
  if wake.taken > 0 then redis.call('LTRIM', list, wake.taken, -1) end
  for i = #wake.unserved, 1, -1 do unserved[#unserved + 1] = wake.unserved[i] end
  write('LPUSH', list, unserved)
  write('RPUSH', list, wake.again)
end

-- The next tenant to serve, or nil. See rule 3: the wake list goes first, unless one who is behind wins the toss.
local function pick(call, round)
  local woken, best = round.woken[round.next_woken], draws.choose(call, round)
  local is_behind = woken and best
    and vtime_of(call, best) + expected_of(call, best) / best.weight < call.queue.level
  if woken and not (is_behind and random(call) < (limits.is_guaranteed(call, woken) and 1 / 8 or 1 / 2)) then
    round.next_woken, woken.listed = round.next_woken + 1, 0
    return touch(call, woken.name)
  end
  if not best then return nil end
  call.queue.level = math.max(call.queue.level, vtime_of(call, best))
  return touch(call, best.name)
end

-- Picks up to `wanted` tasks one by one. Returns the picks in order, as columns: pick i is of tenants[i], and its
-- charge moved the clock by moves[i].
local function pick_round(call, wanted)
  local round, q = {woken = next_woken(call, wanted), next_woken = 1, line = draws.line_up(call)}, call.queue
  local tenants, moves, count = {}, {}, 0
  round.popped = #round.woken
  while count < wanted and q.servable > 0 do
    round.wanted = wanted - count
    local t = pick(call, round)
    if not t then break end
    count = count + 1
    if t.cause ~= 0 then limits.tell_kept(call, t) end
    t.ready, q.ready = t.ready - 1, q.ready - 1
    tenants[count], moves[count] = t, charge(call, t)
    count_lease(call, t, 1)
    if t.limited + q.limited > 0 then limits.spend(call, t, 1) end
    recount(call, t)
    if t.limited == 1 and t.is_servable and limits.is_guaranteed(call, t) then
      round.woken[#round.woken + 1], t.listed = t, 1  -- its turn comes again, after the other newly active tenants'
    end
  end
  keep_woken(call, round)
  return {tenants = tenants, moves = moves, count = count}
end

-- Takes back pick i, whose task turned out to be void (`returned` = 1: it is still ready) or expired (0).
local function unpick(call, picks, i, returned)
  local t = picks.tenants[i]
  refund(call, t, picks.moves[i])
  count_lease(call, t, -1)
  t.ready, call.queue.ready = t.ready + returned, call.queue.ready + returned
  limits.spend(call, t, -1)
  recount(call, t)
end

-- Gives the picks their tasks' ids; those that found only voids are taken back.
local function take_round(call, picks)
  local tenants, moves, wanted, taken, ids = picks.tenants, picks.moves, {}, {}, {}
  for i = 1, picks.count do wanted[tenants[i]] = (wanted[tenants[i]] or 0) + 1 end
  for t, count in pairs(wanted) do taken[t], wanted[t] = takes.ids(call, t, count), 0 end
  for i = 1, picks.count do
    local t = tenants[i]
    local nth = wanted[t] + 1
    local id = taken[t][nth]
    wanted[t] = nth
    if id then
      local n = #ids + 1
      ids[n], tenants[n], moves[n] = id, t, moves[i]
    else
      unpick(call, picks, i, call.voids < VOIDS_PER_CALL and 0 or 1)
    end
  end
  picks.ids, picks.count = ids, #ids
end

-- Whether an entry of a list is of a task that is leased: a call failed between its writes.
local function is_left_over(call, id, run)
  return is_leased(run.state) and redis.call('ZSCORE', key(call, 'leases'), id)
end

-- Sorts the round's tasks: those whose window has closed, those that are leased. An entry without a task, or of one
-- that is leased already, is left over from a call that failed half way: it goes.
local function lease_round(call, picks, claim)
  if picks.count == 0 then return end
  local ids, leases = picks.ids, claim.leases
  local records = redis.call('HMGET', key(call, 'tasks'), unpack(ids))
  local past = redis.call('HMGET', key(call, 'runs'), unpack(ids))
  read_extras(call, ids)
  for i = 1, picks.count do
    local id, t, record = ids[i], picks.tenants[i], records[i]
    local run = past[i] and load_run(past[i])
    if not record or run and is_left_over(call, id, run) then
      unpick(call, picks, i, 0)
    else
      local name, max_attempts, _, _, expires_at = read_header(record)
      t.bytes = t.bytes - #record + HEADER_BYTES + #name  -- payload_bytes, without a call
      run = run or {attempt = 0, forgiven = 0, lease = 0, max_attempts = max_attempts, error = ''}
      if expires_at > 0 then claim.windows[#claim.windows + 1] = id end
      if expires_at > 0 and expires_at <= call.now then
        unpick(call, picks, i, 0)
        claim.late[#claim.late + 1] = {t = t, id = id, run = run, had_run = past[i]}
      else
        run.attempt = run.attempt + 1
        local m, n = #claim.runs, #leases
        claim.runs[m + 1], claim.runs[m + 2] = id, struct.pack(RUN_FORMAT, run.attempt, run.forgiven, run.max_attempts,
          LEASED, call.at, expires_at, claim.lease, #name, name, #claim.name, claim.name, #run.error, run.error)
        claim.deadlines[m + 1], claim.deadlines[m + 2] = claim.deadline, id
        leases[n + 1], leases[n + 2], leases[n + 3] = id, run.attempt, run.max_attempts + run.forgiven
        leases[n + 4] = record
      end
    end
  end
end

-- The number of a claim's leases: higher than any that the queue has given. It follows the time, so that a store which
-- lost the last numbers (a replica that was behind is the primary now) gives none of them again.
local function next_lease(call)
  return math.max(call.queue.last_lease + 1, (call.now - LEASES_SINCE) * LEASES_PER_MS)
end

-- The one block of writes of a claim.
local function write_claim(call, claim)
  write('HSET', key(call, 'runs'), claim.runs)
  write('ZADD', key(call, 'leases'), claim.deadlines)
  write('ZREM', key(call, 'expiring'), claim.windows)
  takes.write(call)
  write_woken(call)
  for _, each in ipairs(claim.late) do
    give_place_back(call, each.id)
    if each.had_run then redis.call('HDEL', key(call, 'runs'), each.id) end
    put_dead(call, each.t, each.id, EXPIRED, each.run)
  end
  if call.queue.special == 0 then return end
  for i = 1, #claim.leases, 4 do
    local id = claim.leases[i]
    count_running(call, id, 1)
    if extras_of(call, id).result_ttl > 0 then table.insert(claim.wanted, id) end
  end
end

-- What a claim under this name took before, if its answer was lost: the leases that still carry the name, renewed.
local function recall(call, name, leases)
  local deadlines = {}
  local ids = redis.call('ZRANGE', key(call, 'leases'), 0, RECALLED - 1, 'REV')
  for first = 1, #ids, TASKS_PER_CALL do
    local some = {unpack(ids, first, math.min(first + TASKS_PER_CALL - 1, #ids))}
    local runs = redis.call('HMGET', key(call, 'runs'), unpack(some))
    for i, id in ipairs(some) do
      local run = load_run(runs[i])
      if run.worker == name and (leases[3] == 0 or leases[3] == run.lease) then  -- of one claim
        leases[3] = run.lease
        deadlines[#deadlines + 1], deadlines[#deadlines + 2] = call.now + call.queue.lease_ms, id
        if extras_of(call, id).result_ttl > 0 then table.insert(leases[4], id) end
        for _, value in ipairs({id, run.attempt, run.max_attempts + run.forgiven,
            redis.call('HGET', key(call, 'tasks'), id)}) do
          leases[#leases + 1] = value
        end
      end
    end
  end
  write('ZADD', key(call, 'leases'), deadlines)
end

-- claim(keys, argv): lease up to `limit` ready tasks by the fair pick.
--   keys  1 prefix
--   argv  1 now  2 dice  3 name of the claim  4 limit (1..500)  5 "again" if an earlier call under this name may have
--         been carried out: what it took is given once more, and nothing else (found among the newest 10,000 leases)
--   out   now_ms, lease_ms, lease (the number of all these leases, which no other claim of the queue ever gets;
--         0: there are none), ids of those whose result is kept, when to tick since tenants ran out of tokens (ms;
--         -1: none did), of tenants that were kept out while they had ready tasks: name, cause (as `barred`; 8: its
--         cap), from when, until when, and of a queue that is barred: '', barred, now, now; then per task: id, attempt,
--         max_attempts, record
--         Fewer than `limit`: the queue is marked hungry, and `ready` is published when there is work again.
--         A queue that is paused or closed gives none. A claim that finds nothing, and finds the mark, writes nothing.
--   flags allow-oom: a full store can be drained
function verbs.claim(keys, args)
  local call, limit = open(keys, args), check_whole(args[4], 'limit', 1, TASKS_PER_CALL)
  if #args[3] > 255 then refuse('bad_request', 'worker') end
  local q, head, rounds = call.queue, {call.now, call.queue.lease_ms, 0, {}, -1, {}}, 0
  if args[5] == 'again' then
    local out = {unpack(head)}
    recall(call, args[3], out)
    if #out > HEAD then return out end
  end
  local claim = {name = args[3], deadline = string.format('%.0f', call.now + q.lease_ms), leases = {}, wanted = head[4],
    runs = {}, deadlines = {}, windows = {}, late = {}, lease = next_lease(call)}
  call.wake = {taken = 0, unserved = {}, again = {}}
  while q.barred == 0 and #claim.leases < 4 * limit and q.servable > 0 and rounds < ROUNDS do
    local picks = pick_round(call, limit - #claim.leases / 4)
    take_round(call, picks)
    lease_round(call, picks, claim)
    seat_all(call)
    rounds = rounds + 1
  end
  local is_short = #claim.leases < 4 * limit
  if #claim.leases > 0 then q.last_lease, head[3] = claim.lease, claim.lease end
  if rounds > 0 or is_short and q.hungry == 0 then
    write_claim(call, claim)
    finish_batches(call)
    if is_short then  -- perhaps work is left behind many voids: come again
      q.hungry, call.readied = 1, call.readied or q.servable > 0
    end
    close(call)
  end
  head[5] = call.unpark_at or -1
  head[HEAD] = q.barred == 0 and {unpack(call.kept)} or {'', q.barred, call.now, call.now}
  for _, value in ipairs(claim.leases) do head[#head + 1] = value end
  return head
end
