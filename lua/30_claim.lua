-- The verb `claim`: the fair pick (10_tenants.lua), and the lease that is written in the same atomic step.
--
-- A claim works in rounds: pick tenants (nothing leaves a slot meanwhile, so the darts stay true), pop their tasks,
-- seat the tenants that were emptied. A second round is needed when the first served all there was outside the wake
-- list (whoever is served from there takes a slot only afterwards), or entries were void or expired, or darts ran out.

local ROUNDS = 8
local RECALLED = 10000
local HEAD = 5  -- values before the leases in the reply

-- Takes tenants off the head of the wake list; those that have left it (see rule 3) are dropped.
local function pop_woken(call, wanted)
  local names = redis.call('LPOP', key(call, 'wake'), wanted)
  local woken = {}
  if not names then return woken end
  read_tenants(call, names)
  for _, name in ipairs(names) do
    local t = tenant(call, name)
    if t.slot == AWAKE and is_eligible(call, t) then woken[#woken + 1] = t else touch(call, name).listed = 0 end
  end
  return woken
end

-- Those that were not served keep their place; those whose turn is to come again go behind all others.
local function push_back_woken(call, round)
  local wake, next_woken, popped = key(call, 'wake'), round.next_woken, round.popped
  for i = popped, next_woken, -1 do redis.call('LPUSH', wake, round.woken[i].name) end
  for i = math.max(next_woken, popped + 1), #round.woken do redis.call('RPUSH', wake, round.woken[i].name) end
end

-- The next tenant to serve, or nil. See rule 3: the wake list goes first, unless one who is behind wins the toss.
local function pick(call, round)
  local woken, best = round.woken[round.next_woken], draws.choose(call, round)
  local is_behind = woken and best
    and vtime_of(call, best) + expected_of(call, best) / best.weight < call.queue.clock
  if woken and not (is_behind and random(call) < (limits.is_guaranteed(call, woken) and 1 / 8 or 1 / 2)) then
    round.next_woken, woken.listed = round.next_woken + 1, 0
    return touch(call, woken.name)
  end
  return best and touch(call, best.name)
end

-- Picks up to `wanted` tasks one by one. Returns the picks in order, as columns: pick i is of tenants[i], and its
-- charge moved the clock by moves[i].
local function pick_round(call, wanted)
  local round, q = {woken = pop_woken(call, wanted), next_woken = 1, line = draws.line_up(call)}, call.queue
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
  push_back_woken(call, round)
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

-- Pops ids off one list until there are `wanted`, passing over voids.
local function pop_level(call, t, level, wanted, ids)
  local list = ready_key(call, t, level)
  while #ids < wanted and call.voids < VOIDS_PER_CALL do
    local popped = redis.call('LPOP', list, wanted - #ids)
    if not popped then return close_level(call, t, level) end
    for _, id in ipairs(popped) do  -- one by one: a void and its replayed task may both be among them
      if pass_void(call, t, id, level) then
        call.voids = call.voids + 1
      else
        ids[#ids + 1] = id
      end
    end
  end
end

-- Pops up to `wanted` ids of one tenant.
local function pop_ready(call, t, wanted)
  if t.voids == 0 and t.levels == 0 then
    local list = ready_key(call, t, USUAL_PRIORITY)
    return wanted == 1 and {redis.call('LPOP', list)} or redis.call('LPOP', list, wanted)
  end
  local ids = {}
  for _, level in ipairs(levels_of(call, t)) do pop_level(call, t, level, wanted, ids) end
  if #ids == wanted and t.ready == 0 then drop_lists(call, t) end
  return ids
end

-- Gives the picks their tasks' ids; those that found only voids are taken back.
local function pop_round(call, picks)
  local tenants, moves, wanted, popped, ids = picks.tenants, picks.moves, {}, {}, {}
  for i = 1, picks.count do wanted[tenants[i]] = (wanted[tenants[i]] or 0) + 1 end
  for t, count in pairs(wanted) do popped[t], wanted[t] = pop_ready(call, t, count), 0 end
  for i = 1, picks.count do
    local t = tenants[i]
    local nth = wanted[t] + 1
    local id = popped[t][nth]
    wanted[t] = nth
    if id then
      local n = #ids + 1
      ids[n], tenants[n], moves[n] = id, t, moves[i]
    else
      unpick(call, picks, i, 1)
    end
  end
  picks.ids, picks.count = ids, #ids
end

-- Drops what has expired, leases the rest.
local function lease_round(call, picks, worker, leases)
  if picks.count == 0 then return end
  local q, ids, runs, deadlines, started = call.queue, picks.ids, {}, {}, {}
  local records = redis.call('HMGET', key(call, 'tasks'), unpack(ids))
  local past = redis.call('HMGET', key(call, 'runs'), unpack(ids))
  read_extras(call, ids)
  local deadline = string.format('%.0f', call.now + q.lease_ms)
  local n, m = #leases, 0
  for i = 1, picks.count do
    local id, t = ids[i], picks.tenants[i]
    local name, max_attempts, _, _, expires_at = read_header(records[i])
    t.bytes = t.bytes - #records[i] + HEADER_BYTES + #name  -- payload_bytes, without a call
    local attempt, forgiven, message = 0, 0, ''
    if past[i] then
      local run = load_run(past[i])
      attempt, forgiven, max_attempts, message = run.attempt, run.forgiven, run.max_attempts, run.error
    end
    if expires_at > 0 then started[#started + 1] = id end
    if expires_at > 0 and expires_at <= call.now then
      unpick(call, picks, i, 0)
      give_place_back(call, id)
      if past[i] then redis.call('HDEL', key(call, 'runs'), id) end
      put_dead(call, t, id, EXPIRED, attempt, message)
    else
      attempt = attempt + 1
      if q.special > 0 then
        count_running(call, id, 1)
        if extras_of(call, id).result_ttl > 0 then table.insert(leases[3], id) end
      end
      runs[m + 1], runs[m + 2] = id, struct.pack(RUN_FORMAT, attempt, forgiven, max_attempts, LEASED, call.now,
        expires_at, #name, name, #worker, worker, #message, message)
      deadlines[m + 1], deadlines[m + 2] = deadline, id
      leases[n + 1], leases[n + 2], leases[n + 3], leases[n + 4] = id, attempt, max_attempts + forgiven, records[i]
      n, m = n + 4, m + 2
    end
  end
  write('ZREM', key(call, 'expiring'), started)
  write('HSET', key(call, 'runs'), runs)
  write('ZADD', key(call, 'leases'), deadlines)
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
      if run.worker == name then
        deadlines[#deadlines + 1], deadlines[#deadlines + 2] = call.now + call.queue.lease_ms, id
        if extras_of(call, id).result_ttl > 0 then table.insert(leases[3], id) end
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
--   out   now_ms, lease_ms, ids of those whose result is kept, when to tick since tenants ran out of tokens (ms; -1:
--         none did), of tenants that were kept out while they had ready tasks: name, cause (as `barred`; 8: its cap),
--         from when, until when, and of a queue that is barred: '', barred, now, now; then per task: id, attempt,
--         max_attempts, record
--         Fewer than `limit`: the queue is marked hungry, and `ready` is published when there is work again.
--         A queue that is paused or closed gives none. A claim that finds nothing, and finds the mark, writes nothing.
--   flags allow-oom: a full store can be drained
function verbs.claim(keys, args)
  local call, limit = open(keys, args), check_whole(args[4], 'limit', 1, TASKS_PER_CALL)
  if #args[3] > 255 then refuse('bad_request', 'worker') end
  local q, out, rounds = call.queue, {call.now, call.queue.lease_ms, {}, -1, {}}, 0
  if args[5] == 'again' then
    recall(call, args[3], out)
    if #out > HEAD then return out end
  end
  call.voids = 0
  while q.barred == 0 and #out < HEAD + 4 * limit and q.servable > 0 and rounds < ROUNDS do
    local picks = pick_round(call, limit - (#out - HEAD) / 4)
    pop_round(call, picks)
    lease_round(call, picks, args[3], out)
    seat_all(call)
    rounds = rounds + 1
  end
  local is_short = #out < HEAD + 4 * limit
  if rounds > 0 or is_short and q.hungry == 0 then
    finish_batches(call)
    if is_short then  -- perhaps work is left behind many voids: come again
      q.hungry, call.readied = 1, call.readied or q.servable > 0
    end
    close(call)
  end
  out[4] = call.unpark_at or -1
  out[HEAD] = q.barred == 0 and {unpack(call.kept)} or {'', q.barred, call.now, call.now}
  return out
end
