-- The verb `claim`: the fair pick (10_tenants.lua), and the lease that is written in the same atomic step.
--
-- A claim works in rounds: pick tenants (nothing leaves a slot meanwhile, so the darts stay true), pop their tasks,
-- seat the tenants that were emptied. A second round is needed when the first served all there was outside the wake
-- list (whoever is served from there takes a slot only afterwards), or entries were void or expired, or darts ran out.

local ROUNDS = 8
local RECALLED = 10000
local VOIDS_PER_CALL = 1000  -- void entries that one call passes over before it leaves the rest to the next

-- Takes tenants off the head of the wake list; those that have left it (see rule 3) are dropped.
local function pop_woken(call, wanted)
  local names = redis.call('LPOP', key(call, 'wake'), wanted)
  local woken = {}
  if not names then return woken end
  load_tenants(call, names)
  for _, name in ipairs(names) do
    local t = call.tenants[name]
    if t.slot == AWAKE then woken[#woken + 1] = t else touch(call, name).listed = 0 end
  end
  return woken
end

local function push_back_woken(call, round)
  for i = #round.woken, round.next_woken, -1 do
    redis.call('LPUSH', key(call, 'wake'), round.woken[i].name)
  end
end

-- The next tenant to serve, or nil. See rule 3: the wake list goes first, unless that would starve the drawn tenant.
local function pick(call, round)
  local woken, drawn = round.woken[round.next_woken], draw_two(call, round)
  if woken and not (drawn and drawn.vtime + cost_of(call, drawn) / drawn.weight < call.queue.clock) then
    round.next_woken, woken.listed = round.next_woken + 1, 0
    return woken
  end
  return drawn
end

-- Charges up to `wanted` tasks one by one; returns the picks in order.
local function pick_round(call, wanted)
  local round, picks, q = {woken = pop_woken(call, wanted), next_woken = 1, line = line_up(call)}, {}, call.queue
  round.darts = {names = {}, next = 1}
  while #picks < wanted and q.weight_sum > 0 do
    round.darts.refill = math.min(3 * (wanted - #picks) + 1, 400)  -- two hits for each pick, and some misses
    local t = pick(call, round)
    if not t then break end
    touch(call, t.name)
    local p = {tenant = t, cost = cost_of(call, t), weight_sum = q.weight_sum, id = false, record = false, run = false}
    picks[#picks + 1] = p
    t.ready, q.ready = t.ready - 1, q.ready - 1
    charge(call, t, p.cost, p.weight_sum)
    if t.ready == 0 then count_out(call, t) end
  end
  push_back_woken(call, round)
  return picks
end

-- Takes back a pick whose task turned out to be void (`returned` = 1: it is still ready) or expired (0).
local function unpick(call, p, returned)
  local t = p.tenant
  charge(call, t, -p.cost, p.weight_sum)
  t.ready, call.queue.ready = t.ready + returned, call.queue.ready + returned
  if is_eligible(t) then count_in(call, t) end
end

-- Pops up to `wanted` ids of one tenant, passing over voids.
local function pop_ready(call, t, wanted)
  local list = key(call, 'ready:' .. t.name)
  if t.voids == 0 then return redis.call('LPOP', list, wanted) end
  local void, ids = key(call, 'void:' .. t.name), {}
  while #ids < wanted and call.voids < VOIDS_PER_CALL do
    local popped = redis.call('LPOP', list, wanted - #ids)
    if not popped then break end
    for _, id in ipairs(popped) do  -- one by one: a void and its replayed task may both be among them
      if redis.call('HEXISTS', void, id) == 1 then
        call.voids, t.voids = call.voids + 1, t.voids - 1
        if redis.call('HINCRBY', void, id, -1) == 0 then redis.call('HDEL', void, id) end
      else
        ids[#ids + 1] = id
      end
    end
  end
  if #ids == wanted and t.ready == 0 then drop_voids(call, t) end
  return ids
end

local function pop_round(call, picks)
  local wanted, ids = {}, {}
  for _, p in ipairs(picks) do wanted[p.tenant] = (wanted[p.tenant] or 0) + 1 end
  for t, count in pairs(wanted) do wanted[t] = {ids = pop_ready(call, t, count), next = 1} end
  local found = {}
  for _, p in ipairs(picks) do
    local popped = wanted[p.tenant]
    p.id = popped.ids[popped.next]
    popped.next = popped.next + 1
    if p.id then
      found[#found + 1] = p
      ids[#ids + 1] = p.id
    else
      unpick(call, p, 1)
    end
  end
  if #ids == 0 then return found end
  local records = redis.call('HMGET', key(call, 'tasks'), unpack(ids))
  local runs = redis.call('HMGET', key(call, 'runs'), unpack(ids))
  for i, p in ipairs(found) do p.record, p.run = records[i], runs[i] end
  return found
end

local function new_run(p, max_attempts)
  if p.run then return load_run(p.run) end
  return {
    attempt = 0, forgiven = 0, max_attempts = max_attempts, state = LEASED, epoch = 0, leased_at = 0, cost = 0,
    weight_sum = 0, expires_at = 0, tenant = p.tenant.name, worker = '', error = '',
  }
end

-- Drops what has expired, leases the rest.
local function lease_round(call, found, worker, leases)
  local q, runs, deadlines, started = call.queue, {}, {}, {}
  local deadline = string.format('%.0f', call.now + q.lease_ms)
  for _, p in ipairs(found) do
    local h, t = load_header(p.record), p.tenant
    local run = new_run(p, h.max_attempts)
    if h.expires_at > 0 then started[#started + 1] = p.id end
    if h.expires_at > 0 and h.expires_at <= call.now then
      unpick(call, p, 0)
      if p.run then redis.call('HDEL', key(call, 'runs'), p.id) end
      put_dead(call, t, p.id, EXPIRED, run.attempt, run.error)
    else
      run.attempt, run.state, run.leased_at, run.expires_at = run.attempt + 1, LEASED, call.now, h.expires_at
      run.epoch, run.cost, run.weight_sum, run.worker = q.epoch, p.cost, p.weight_sum, worker
      t.leased, q.leased = t.leased + 1, q.leased + 1
      local n, m = #leases, #runs
      runs[m + 1], runs[m + 2], deadlines[m + 1], deadlines[m + 2] = p.id, pack_run(run), deadline, p.id
      leases[n + 1], leases[n + 2], leases[n + 3] = p.id, run.attempt, run.max_attempts + run.forgiven
      leases[n + 4] = p.record
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
--   out   now_ms, lease_ms, then per task: id, attempt, max_attempts, record
--         Fewer than `limit`: the queue is marked hungry, and `ready` is published when there is work again.
--         A paused queue gives none. A claim that finds nothing, and finds the mark, writes nothing.
--   flags allow-oom: a full store can be drained
local function claim(keys, args)
  local call, limit = open(keys, args), tonumber(args[4])
  if not limit or limit < 1 or limit > TASKS_PER_CALL or limit % 1 ~= 0 then refuse('bad_request', 'limit') end
  if #args[3] > 255 then refuse('bad_request', 'worker') end
  local q, out, rounds = call.queue, {call.now, call.queue.lease_ms}, 0
  if args[5] == 'again' then
    recall(call, args[3], out)
    if #out > 2 then return out end
  end
  call.voids = 0
  while q.paused == 0 and #out < 2 + 4 * limit and q.weight_sum > 0 and rounds < ROUNDS do
    local picks = pick_round(call, limit - (#out - 2) / 4)
    lease_round(call, pop_round(call, picks), args[3], out)
    seat_all(call)
    rounds = rounds + 1
  end
  local is_short = #out < 2 + 4 * limit
  if rounds > 0 or is_short and q.hungry == 0 then
    if is_short then q.hungry, call.readied = 1, q.weight_sum > 0 end  -- work is left behind many voids: come again
    close(call)
  end
  return out
end
