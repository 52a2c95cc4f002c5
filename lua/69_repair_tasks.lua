-- Repair (68_repair.lua): where each task is, and leases.
do

local jobs, part, note = repairs.jobs, repairs.part, repairs.note
local NO_LEASE = {lease = 0}

-- Adds what a tenant keeps beside its tasks to its bytes. An unknown tenant becomes known again.
function repairs.add_kept(call, name, bytes)
  if redis.call('HEXISTS', key(call, 'tenants'), name) == 0 then
    local t = accounts.named(call, name)
    redis.call('HSET', key(call, 'accounts'), t.tag, accounts.pack(call, t))
    redis.call('HSET', key(call, 'tenants'), name, DETAILS.pack(accounts.details_of(call, t)))
  end
  local sums = repairs.kept(call, 'sums', SUMS, name)
  sums.bytes = sums.bytes + bytes
end

function jobs.clear(call, job)
  local flat, is_last = repairs.scan(call, job, 'tenants')
  for i = 1, #flat, 2 do redis.call('UNLINK', part(call, 'ready:' .. flat[i])) end
  return is_last
end

function jobs.tenants(call, job)
  local flat, is_last = repairs.scan(call, job, 'tenants')
  for i = 1, #flat, 2 do
    if redis.call('EXISTS', key(call, 'delayed:' .. flat[i])) == 1 then repairs.ask(call, 'delayed', flat[i]) end
    if redis.call('EXISTS', key(call, 'deaths:' .. flat[i])) == 1 then repairs.ask(call, 'buried', flat[i]) end
  end
  return is_last
end

function jobs.batches(call, job)
  local flat, is_last = repairs.scan(call, job, 'batches', 10)
  for i = 1, #flat, 2 do
    local b = BATCH.unpack(flat[i + 1])
    repairs.add_kept(call, b.tenant, batches.bytes_of(b))
    repairs.ask(call, 'pending', flat[i])
    repairs.ask(call, 'members', flat[i])
  end
  return is_last
end

-- What is to stand in sorted sets: by the set's name, ids and scores.
local function want(wanted, name, kind, id, score)
  wanted[name] = wanted[name] or {kind = kind, ids = {}, scores = {}}
  table.insert(wanted[name].ids, id)
  table.insert(wanted[name].scores, score)
end

local function add_missing(call, wanted)
  for name, own in pairs(wanted) do
    local missing = {}
    for i, score in ipairs(redis.call('ZMSCORE', key(call, name), unpack(own.ids))) do
      if not score then missing[#missing + 1], missing[#missing + 2] = text(own.scores[i]), own.ids[i] end
    end
    write('ZADD', key(call, name), missing)
    note(call, own.kind, #missing / 2)
  end
end

local function is_pending(call, id, fact)
  return repairs.batch_of(call, fact) and redis.call('ZSCORE', key(call, 'pending:' .. fact.asked.batch), id)
end

-- Says of the waiting tasks whether they are delayed, pending or ready.
local function find_waiting(call, ids, facts)
  local of = {}
  for _, id in ipairs(ids) do
    local name = facts[id].header.tenant
    if facts[id].place == 'waiting' then
      of[name] = of[name] or {}
      table.insert(of[name], id)
    end
  end
  for name, own in pairs(of) do
    for i, start_at in ipairs(redis.call('ZMSCORE', key(call, 'delayed:' .. name), unpack(own))) do
      local fact = facts[own[i]]
      fact.place = start_at and 'delayed' or is_pending(call, own[i], fact) and 'pending' or 'ready'
    end
  end
end

-- The tenant of a task; one that has no account gets one.
local function tenant_of(call, fact)
  local t = accounts.named(call, fact.header.tenant)
  local details = accounts.details_of(call, t)
  if details.packed then return t end
  note(call, 'tenants', 1)
  details.packed = DETAILS.pack(details)  -- at once: a later job of this call goes through all tenants
  redis.call('HSET', key(call, 'tenants'), t.name, details.packed)
  redis.call('HSET', key(call, 'accounts'), t.tag, accounts.pack(call, t))
  return t
end

-- A record that says that the task asks for more, where nothing is known of that; and what the run has of the record.
local function mend_record(call, id, fact, t)
  local header, run = fact.header, fact.run
  if header.features % 2 == HAS_OPTIONS and not fact.asked then
    local _, position = HEADER.unpack(fact.record)
    header.features = header.features - HAS_OPTIONS
    redis.call('HSET', key(call, 'tasks'), id, HEADER.pack(header) .. fact.record:sub(position))
    note(call, 'task_options', 1)
  end
  local bytes = run and fact.bytes + #run.made
  if run and (run.tag ~= t.tag or run.features ~= header.features or run.bytes ~= bytes) then
    run.tag, run.features, run.bytes = t.tag, header.features, bytes
    redis.call('HSET', key(call, 'runs'), id, RUN.pack(run))
    note(call, 'runs', 1)
  end
end

local function count_member(call, id, fact, wanted)
  local b = fact.place ~= 'dead' and repairs.batch_of(call, fact)
  if not b then return end
  local tally = repairs.kept(call, 'tallies', TALLY, fact.asked.batch)
  local is_leased = fact.place == 'leased' and 1 or 0
  tally.alive, tally.running = tally.alive + 1, tally.running + is_leased
  tally.admitted = tally.admitted + (fact.place == 'ready' and 1 or is_leased)
  if is_leased == 1 and fact.run.state == leases.STOPPING then return end
  if redis.call('ZSCORE', key(call, 'cancelling'), fact.asked.batch) then return end
  want(wanted, 'members:' .. fact.asked.batch, 'batches', id, b.sequence)
end

-- Sees that the group of a ready task has a turn, so that it is looked at.
local function give_turn(call, t, asked)
  local own = {group = turns.group_of(asked), weight = asked.weight, order = call.queue.sequence}
  if own.group ~= '' then note(call, 'turns', turns.join(call, t, asked.priority, {own})) end
end

-- Counts a task where it is, and says where it is to be named.
local function count_task(call, id, fact, wanted)
  local q, header, t = call.queue, fact.header, tenant_of(call, fact)
  mend_record(call, id, fact, t)
  local sums, run = repairs.kept(call, 'sums', SUMS, t.name), fact.run
  sums.bytes = sums.bytes + fact.bytes + (run and #run.made or 0)
  q.last_lease = math.max(q.last_lease, (run or fact.death or NO_LEASE).lease)
  if fact.place == 'ready' then
    redis.call('ZADD', part(call, 'ready:' .. t.name), text(header.enqueued_at), id)
    give_turn(call, t, fact.asked or PLAIN)
  else
    sums[fact.place] = sums[fact.place] + 1
  end
  if fact.place == 'dead' then
    want(wanted, 'deaths', 'dead', id, fact.death.died_at)
    want(wanted, 'deaths:' .. t.name, 'dead', id, fact.death.died_at)
  elseif fact.place == 'leased' then
    sums.starts = sums.starts + math.max(run.began_at, q.epoch_at)
    redis.call('HSET', part(call, 'leased'), id, leases.field(run.lease))
    if run.is_extended == 1 then want(wanted, 'extended', 'leases', id, call.now + run.lasts) end
  elseif header.expires_at > 0 then
    want(wanted, 'expiring', 'expiring', id, header.expires_at)
  end
  count_member(call, id, fact, wanted)
end

function jobs.tasks(call, job)
  local flat, is_last = repairs.scan(call, job, 'tasks', repairs.PAGE / 2)
  local ids, marked, wanted = {}, {}, {}
  for i = 1, #flat, 2 do table.insert(records.is_task(flat[i + 1]) and ids or marked, flat[i]) end
  if #marked > 0 then repairs.add(call, 'remembered', redis.call('SADD', part(call, 'marks'), unpack(marked))) end
  if #ids == 0 then return is_last end
  local facts = repairs.facts(call, ids)
  find_waiting(call, ids, facts)
  for _, id in ipairs(ids) do count_task(call, id, facts[id], wanted) end
  add_missing(call, wanted)
  return is_last
end

-- Sees that a bundle's counts are those of its leases, and that it has a deadline if it needs one.
local function mend_bundle(call, field, bundle)
  local ids, left, together, found = leases.ids_of(bundle), 0, 0, {}
  call.repair.left = call.repair.left - #ids
  for i, packed in ipairs(#ids > 0 and redis.call('HMGET', key(call, 'runs'), unpack(ids)) or {}) do
    local run = packed and LEASE.unpack(packed)
    if run and leases.is_leased(run.state) and leases.field(run.lease) == field then
      left, together, found[#found + 1] = left + 1, together + 1 - run.is_extended, ids[i]
    end
  end
  write('HDEL', part(call, 'leased'), found)
  if left == 0 then
    redis.call('HDEL', key(call, 'bundles'), field)
    note(call, 'leases', 1)
  elseif left ~= bundle.left or together ~= bundle.together then
    bundle.left, bundle.together = left, together
    redis.call('HSET', key(call, 'bundles'), field, BUNDLE.pack(bundle))
    note(call, 'leases', 1)
  end
  if together > 0 then
    note(call, 'leases', redis.call('ZADD', key(call, 'leases'), 'NX', text(call.now + call.queue.lease_ms), field))
  else
    note(call, 'leases', redis.call('ZREM', key(call, 'leases'), field))
  end
end

function jobs.bundles(call, job)
  local flat, is_last = repairs.scan(call, job, 'bundles', 1)
  for i = 1, #flat, 2 do repairs.ask(call, 'bundle', flat[i]) end  -- one by one: a page of bundles is many tasks
  return is_last
end

function jobs.bundle(call, job)
  local packed = redis.call('HGET', key(call, 'bundles'), job.rest)
  local bundle = packed and BUNDLE.unpack(packed)
  if bundle then
    if bundle.claim ~= '' and bundle.left > 0 then
      note(call, 'leases', redis.call('HSET', key(call, 'claims'), bundle.claim, job.rest))
    end
    mend_bundle(call, job.rest, bundle)
  end
  return true
end

-- Leases that no bundle names: their number opens them still, so it becomes a bundle again.
function jobs.leased(call, job)
  local flat, is_last = repairs.scan(call, job, 'repair:leased')
  for i = 1, #flat, 2 do
    local id, lease = flat[i], tonumber(flat[i + 1])
    local run, bundle = LEASE.unpack(redis.call('HGET', key(call, 'runs'), id)), leases.bundle(call, lease)
    bundle = bundle or {left = 0, together = 0, claim = '', ids = ''}
    bundle.ids = bundle.ids == '' and id or bundle.ids .. '\n' .. id
    bundle.left, bundle.together, bundle.is_changed = bundle.left + 1, bundle.together + 1 - run.is_extended, true
    call.bundles[lease] = bundle
    redis.call('HDEL', part(call, 'leased'), id)
    if run.is_extended == 0 then
      redis.call('ZADD', key(call, 'leases'), 'NX', text(call.now + run.lasts), flat[i + 1])
    end
  end
  note(call, 'leases', #flat / 2)
  leases.write(call)
  return is_last
end

local function is_bundle(call, field) return redis.call('HEXISTS', key(call, 'bundles'), field) == 1 end

function jobs.claims(call, job)
  local flat, is_last = repairs.scan(call, job, 'claims')
  for i = 1, #flat, 2 do
    local bundle = leases.bundle(call, tonumber(flat[i + 1]))
    if not bundle then
      note(call, 'leases', redis.call('HDEL', key(call, 'claims'), flat[i]))
    elseif bundle.claim == '' then
      bundle.claim, bundle.is_changed = flat[i], true
    end
  end
  leases.write(call)
  return is_last
end

function jobs.leases(call, job)
  return repairs.prune_set(call, job, 'leases', 'leases', function()
    return function(field) return is_bundle(call, field) end
  end)
end

end
