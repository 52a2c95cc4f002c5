-- Repair (68_repair.lua): who is served next, what tenants, batches and the queue count.
do

local jobs, part, note, add = repairs.jobs, repairs.part, repairs.note, repairs.add
local COUNTS = {'ready', 'pending', 'delayed', 'leased', 'dead', 'links'}

-- Sets what differs in a record; returns whether anything did.
local function correct(call, kind, record, values)
  local count = 0
  for name, value in pairs(values) do
    if record[name] ~= value then record[name], count = value, count + 1 end
  end
  note(call, kind, count)
  return count > 0
end

function jobs.wake(call, job)
  return repairs.filter(call, job, 'wake', 'wake', function(tags)
    local kept = {}
    accounts.read(call, tags)
    for _, tag in ipairs(tags) do
      if accounts.at(call, tag) and redis.call('SADD', part(call, 'woken'), tag) == 1 then kept[#kept + 1] = tag end
    end
    return kept
  end)
end

local function save_account(call, t) redis.call('HSET', key(call, 'accounts'), t.tag, accounts.pack(call, t)) end

-- An account whose tenant's name is not known any more is found by it again.
local function keep_name(call, t)
  if redis.call('HEXISTS', key(call, 'tenants'), t.name) == 1 then return end
  note(call, 'tenants', 1)
  local details = DETAILS.unpack(string.rep('\0', DETAILS.size))
  details.tag = t.tag
  redis.call('HSET', key(call, 'tenants'), t.name, DETAILS.pack(details))
end

-- Whether the slot that an account has is its own.
local function has_slot(call, t)
  local at = key(call, 'class:' .. t.class)
  return t.slot <= (call.queue.classes[t.class] or 0)
    and redis.call('GETRANGE', at, 4 * t.slot - 4, 4 * t.slot - 1) == t.tag
end

-- Sees that an account says whether it stands on the wake list, and stands there if it must; looks at its slot.
local function check_account(call, t)
  local is_listed, slot = redis.call('SISMEMBER', part(call, 'woken'), t.tag), math.max(t.slot, AWAKE)
  if slot == AWAKE and is_listed == 0 then
    redis.call('RPUSH', key(call, 'wake'), t.tag)
    note(call, 'wake', 1)
    is_listed = 1
  end
  local standing = slot == OUT and 0 or math.min(math.max(t.standing, ELIGIBLE), COMPETES)
  local right = {is_on_wake_list = is_listed, slot = slot, standing = standing}
  if correct(call, 'seats', t, right) then save_account(call, t) end
  if slot > 0 then
    add(call, 'class ' .. t.class, 1)
    if not has_slot(call, t) then add(call, 'flaws', 1) end
  end
  if standing ~= 0 then add(call, 'servable', 1) end
  if standing == COMPETES then
    add(call, 'weight_sum', t.weight)
    add(call, 'running', accounts.running_of(t))
  end
end

-- Compares what the queue says of all accounts with what they say.
local function check_queue(call)
  local q, totals = call.queue, call.repair.totals
  for class, count in pairs(q.classes) do
    if count ~= (totals['class ' .. class] or 0) then add(call, 'flaws', 1) end
  end
  local hours = redis.call('HGET', key(call, 'opening_hours'), '')
  correct(call, 'counts', q, {servable = totals.servable or 0, weight_sum = totals.weight_sum or 0,
    running = totals.running or 0, limited = redis.call('HEXISTS', key(call, 'limits'), '')})
  limits.block(q, BLOCKED_CLOSED, hours and HOURS.unpack(hours).is_open == 0)
end

function jobs.accounts(call, job)
  local flat, is_last = repairs.scan(call, job, 'accounts')
  for i = 1, #flat, 2 do
    local t = accounts.unpack(call, flat[i], flat[i + 1])
    call.queue.numbers = math.max(call.queue.numbers, (struct.unpack('<I', t.tag)))
    keep_name(call, t)
    check_account(call, t)
  end
  if is_last then check_queue(call) end
  return is_last
end

-- Gives all who have slots new ones, if any were wrong.
function jobs.slots(call, job)
  local q = call.queue
  if (call.repair.totals.flaws or 0) == 0 then return true end
  if job.cursor == '0' then
    for class in pairs(q.classes) do redis.call('UNLINK', key(call, 'class:' .. class)) end
    q.classes = {}
  end
  local flat, is_last = repairs.scan(call, job, 'accounts')
  for i = 1, #flat, 2 do
    local t = accounts.at(call, flat[i])
    if t.slot > 0 then
      local _, class = math.frexp(accounts.rate_of(call, t))
      t.class, t.slot = class, (q.classes[class] or 0) + 1
      q.classes[class] = t.slot
      redis.call('SETRANGE', key(call, 'class:' .. class), 4 * t.slot - 4, t.tag)
      save_account(call, t)
    end
  end
  if is_last then note(call, 'seats', call.repair.totals.flaws) end
  return is_last
end

-- Every tenant on the list of those with nothing running has an account; `mend` checks that nothing runs.
function jobs.idle(call, job)
  return repairs.prune_set(call, job, 'idle', 'seats', function(tags)
    accounts.read(call, tags)
    return function(tag) return accounts.at(call, tag) ~= nil end
  end)
end

-- Whether a tenant does not stand where its state says it belongs. Where only the limit for all says so, it may.
local function is_misplaced(call, t, d)
  local own = d.limited == 1 and limits.set_for(call, t.name).max_running or UNSET
  local is_within = limits.is_within_guarantee(call, t)
  if t.slot == OUT then
    return limits.is_eligible(call, t) and (call.queue.sweeping == 0 or own ~= UNSET) or t.standing == COMPETES
  end
  local is_full = own > 0 and t.leased >= own
  return t.ready == 0 or d.blocked ~= 0 or is_full or t.standing ~= (is_within and ELIGIBLE or COMPETES)
    or t.slot > 0 and limits.is_guaranteed(call, t)
end

-- Sets what a tenant counts, and what blocks it; returns whether anything was wrong.
local function mend_counts(call, t, d)
  local sums, running = repairs.kept(call, 'sums', SUMS, t.name), accounts.running_of(t)
  local hours, blocked = redis.call('HGET', key(call, 'opening_hours'), t.name), {blocked = d.blocked}
  limits.block(blocked, BLOCKED_CLOSED, hours and HOURS.unpack(hours).is_open == 0)
  local is_wrong = correct(call, 'accounts', t, {ready = sums.ready, leased = sums.leased, starts = sums.starts})
  is_wrong = correct(call, 'accounts', accounts.books_of(call, t), {bytes = sums.bytes}) or is_wrong
  is_wrong = correct(call, 'accounts', d, {pending = sums.pending, delayed = sums.delayed, dead = sums.dead,
    links = sums.links, tombstones = sums.tombstones, grouped = sums.grouped, blocked = blocked.blocked,
    priorities = redis.call('ZCARD', key(call, 'priorities:' .. t.name)),
    limited = redis.call('HEXISTS', key(call, 'limits'), t.name)}) or is_wrong
  if t.loan ~= 0 and t.leased ~= 1 then is_wrong = correct(call, 'accounts', t, {loan = 0}) or is_wrong end
  if t.standing == COMPETES then call.queue.running = call.queue.running + accounts.running_of(t) - running end
  add(call, 'loans', t.loan ~= 0 and 1 or 0)
  for _, name in ipairs(COUNTS) do add(call, name, sums[name]) end
  return is_wrong
end

-- Sees that ticks look for a tenant's delayed tasks, its tokens and its dead letters.
local function mend_watches(call, t, d)
  local delayed = redis.call('ZRANGE', key(call, 'delayed:' .. t.name), 0, 0, 'WITHSCORES')[2]
  if delayed and call.queue.sweeping == 0 then
    local due = redis.call('ZSCORE', key(call, 'due'), t.name)
    if not due or tonumber(due) > math.max(tonumber(delayed), call.now) then
      redis.call('ZADD', key(call, 'due'), delayed, t.name)
      note(call, 'due', 1)
    end
  end
  if bit.band(d.blocked, BLOCKED_RATE) ~= 0 then
    note(call, 'accounts', redis.call('ZADD', key(call, 'parked'), 'NX', text(call.now), t.name))
  end
  if call.queue.reserve > 0 and call.queue.sweeping == 0 then
    local base = t.slot > 0 and t.leased == 0 and t.base or nil
    if tonumber(redis.call('ZSCORE', key(call, 'idle'), t.tag) or nil) ~= base then
      note(call, 'seats', 1)
      accounts.touch(call, t)
    end
  end
  local graves = key(call, 'dead_counts')
  if d.dead ~= tonumber(redis.call('ZSCORE', graves, t.name) or 0) then
    note(call, 'dead', 1)
    redis.call(d.dead > 0 and 'ZADD' or 'ZREM', graves, unpack(d.dead > 0 and {d.dead, t.name} or {t.name}))
  end
end

local function mend_tenant(call, name, packed)
  local t = accounts.named(call, name, packed)
  local d = accounts.details_of(call, t)
  local is_new = not d.packed
  note(call, 'tenants', is_new and 1 or 0)
  local is_wrong = mend_counts(call, t, d) or is_new
  mend_watches(call, t, d)
  local is_odd = accounts.are_odd(d) and 1 or 0
  is_wrong = correct(call, 'accounts', t, {is_odd = is_odd}) or is_wrong
  if is_misplaced(call, t, d) then
    note(call, 'seats', 1)
    is_wrong = true
  end
  if is_wrong then accounts.touch(call, t) end
  if t.ready == 0 and d.tombstones > 0 then places.drop_lists(call, accounts.touch(call, t)) end
end

function jobs.mend(call, job)
  local flat, is_last = repairs.scan(call, job, 'tenants', 50)
  for i = 1, #flat, 2 do mend_tenant(call, flat[i], flat[i + 1]) end
  if is_last then
    local counts = {loans = call.repair.totals.loans or 0, fan_outs = webhooks.count_fan_outs(call)}
    for _, name in ipairs(COUNTS) do counts[name] = call.repair.totals[name] or 0 end
    correct(call, 'counts', call.queue, counts)
  end
  return is_last
end

-- An unknown tenant has no dead letters.
function jobs.dead_counts(call, job)
  return repairs.prune_set(call, job, 'dead_counts', 'dead', function(names)
    local known, found = {}, redis.call('HMGET', key(call, 'tenants'), unpack(names))
    for i, name in ipairs(names) do known[name] = found[i] end
    return function(name) return known[name] end
  end)
end

-- What batches count; then places that are free go to pending tasks, as whenever a batch has changed.
function jobs.tallies(call, job)
  local flat, is_last = repairs.scan(call, job, 'batches', 10)
  call.batches = false
  for i = 1, #flat, 2 do
    local b, tally = batches.find(call, flat[i]), repairs.kept(call, 'tallies', TALLY, flat[i])
    if b.state ~= COMPLETE then
      correct(call, 'batches', b, {running = tally.running, admitted = tally.admitted,
        total = b.done + b.dead + b.cancelled + tally.alive})
    else
      correct(call, 'batches', b, {total = b.done + b.dead + b.cancelled})
      note(call, 'batches', redis.call('ZADD', key(call, 'completed'), 'NX', text(b.completed_at), flat[i]))
    end
  end
  batches.finish(call)
  call.batches = false
  return is_last
end

-- Results and dedupe keys.
function jobs.ends(call, job)
  local first, unknown = tonumber(job.cursor), {}
  local members = redis.call('ZRANGE', key(call, 'ends'), first, first + repairs.PAGE - 1)
  for _, member in ipairs(members) do
    local t = accounts.at(call, member:sub(2, 5))
    if t then repairs.add_kept(call, t.name, (struct.unpack('<I', member, 6))) else unknown[#unknown + 1] = member end
  end
  write('ZREM', key(call, 'ends'), unknown)
  note(call, 'accounts', #unknown)
  job.cursor, call.repair.left = text(first + #members - #unknown), call.repair.left - #members
  return #members < repairs.PAGE
end

-- Templates of schedules.
function jobs.templates(call, job)
  local flat, is_last = repairs.scan(call, job, 'templates', 10)
  for i = 1, #flat, 2 do
    repairs.add_kept(call, flat[i]:match('^[^/]*'), KEPT_BYTES + #flat[i + 1])
  end
  return is_last
end

end
