-- Repair: what a queue keeps to be fast is made anew from what says where its tasks are. The first half: how a repair
-- goes on from call to call, what is not to be there, and where each task is.
--
-- Authority. The records in `tasks` say which tasks there are. Of each: a death in `dead` means dead, else a run that
-- is leased means leased, else an entry in its tenant's `delayed` set or its batch's `pending` set means that, else it
-- is ready. All else (lists, tombstones, counts, accounts' counts, seats, bundles and deadlines, watches) follows from
-- that, and only what differs is written: of a sound queue nothing but the deadlines of its leases.
--
-- A repair is a stack of *jobs*; a call takes the topmost, page by page, until it has looked at WORK elements. A job
-- that is not done goes back with its cursor, and below those that it asks for. What it has learned stands in `repair`
-- and in keys beginning so, until it is done. If a call failed half way, or the store is another one than before (by
-- its run id: cursors of a hash are good for one life of one store), the repair begins anew.
--
-- Meanwhile the queue is blocked (BLOCKED_REPAIR): claims give nothing, and whatever else changes it is refused.

local repairs = {jobs = {}}  -- what other sections call; `jobs`: kind -> job(call, job), true when it is done
do

repairs.PAGE, repairs.WORK = 64, 100  -- elements of one page, and after how many a call is over
local STEPS = {'clear', 'runs', 'dead', 'task_options', 'expiring', 'deaths', 'extended', 'tenants', 'wake', 'accounts',
  'slots', 'idle', 'batches', 'tasks', 'ends', 'templates', 'outbox', 'links', 'outbox_due', 'bundles', 'leased',
  'claims', 'leases', 'marks', 'unnamed', 'lists', 'mend', 'dead_counts', 'tallies', 'renew'}
local PARTS = {'jobs', 'sums', 'tallies', 'leased', 'marks', 'woken', 'list', 'tombstones'}
local jobs = repairs.jobs

-- A key of what the repair has learned.
local function part(call, name) return key(call, 'repair:' .. name) end
repairs.part = part

-- Counts mended faults.
function repairs.note(call, kind, count)
  if count > 0 then call.repair.mended[kind] = (call.repair.mended[kind] or 0) + count end
end

-- Adds to a sum over all pages of a job.
function repairs.add(call, name, count)
  call.repair.totals[name] = (call.repair.totals[name] or 0) + count
end

-- A record that the repair keeps of a tenant or a batch, to be changed: all zero at first.
function repairs.kept(call, name, format, field)
  local known = calls.table_of(call.repair, name)
  if not known[field] then
    known[field] = format.unpack(redis.call('HGET', part(call, name), field) or string.rep('\0', format.size))
  end
  return known[field]
end

local function save_kept(call, name, format)
  local fields = {}
  for field, record in pairs(call.repair[name] or {}) do
    fields[#fields + 1], fields[#fields + 2] = field, format.pack(record)
  end
  write('HSET', part(call, name), fields)
end

local function pack_job(job) return table.concat({job.kind, job.cursor, job.flaws, job.rest}, ' ') end

-- Has a job done before the one that asks for it goes on.
function repairs.ask(call, kind, rest)
  table.insert(call.repair.asked, pack_job({kind = kind, cursor = '0', flaws = 0, rest = rest or ''}))
end

-- The store's run id; empty where its user may not ask.
local function life_of_store()
  local told = redis.pcall('INFO', 'server')
  return type(told) == 'string' and told:match('run_id:(%w+)') or ''
end

-- Deletes what the repair has learned; what it keeps of tenants' ready tasks is deleted by its first step.
function repairs.forget(call)
  local doomed = {}
  for priority = 0, MAX_PRIORITY do doomed[#doomed + 1] = part(call, 'lost:' .. priority) end
  for _, name in ipairs(PARTS) do doomed[#doomed + 1] = part(call, name) end
  redis.call('UNLINK', key(call, 'repair'), unpack(doomed))
end

local function begin(call, mended)
  local steps = {}
  repairs.forget(call)
  for i, kind in ipairs(STEPS) do steps[i] = pack_job({kind = kind, cursor = '0', flaws = 0, rest = ''}) end
  redis.call('RPUSH', part(call, 'jobs'), unpack(steps))
  call.repair.totals, call.repair.mended = {}, mended
end

-- Reads how far the repair is, or begins it. `number` is that of the repair, the time when it began.
function repairs.load(call)
  local flat, life = redis.call('HGETALL', key(call, 'repair')), life_of_store()
  local r, known = {totals = {}, mended = {}, left = repairs.WORK, asked = {}}, {}
  for i = 1, #flat, 2 do
    local kind, name = flat[i]:match('^(%w+) (.*)$')
    if kind then r[kind][name] = tonumber(flat[i + 1]) else known[flat[i]] = flat[i + 1] end
  end
  call.repair, r.number = r, tonumber(known.number or call.now)
  if known.life ~= life or known.is_open == '1' then begin(call, r.mended) end
  redis.call('HSET', key(call, 'repair'), 'number', text(r.number), 'life', life, 'is_open', 1)
  call.queue.blocked = bit.bor(call.queue.blocked, BLOCKED_REPAIR)
  return r
end

-- Does jobs until the call has looked at enough; returns whether all are done.
function repairs.work(call)
  local r, at = call.repair, part(call, 'jobs')
  while r.left > 0 do
    local packed = redis.call('LPOP', at)
    if not packed then return true end
    local kind, cursor, flaws, rest = packed:match('^(%S+) (%S+) (%S+) (.*)$')
    local job = {kind = kind, cursor = cursor, flaws = tonumber(flaws), rest = rest}
    r.asked, r.left = {}, r.left - 1
    local is_done = jobs[kind](call, job)
    if not is_done then redis.call('LPUSH', at, pack_job(job)) end
    for i = #r.asked, 1, -1 do redis.call('LPUSH', at, r.asked[i]) end
  end
  return redis.call('EXISTS', at) == 0
end

function repairs.save(call)
  local r, fields = call.repair, {'is_open', 0}
  for _, kind in ipairs({'totals', 'mended'}) do
    for name, count in pairs(r[kind]) do fields[#fields + 1], fields[#fields + 2] = kind .. ' ' .. name, text(count) end
  end
  write('HSET', key(call, 'repair'), fields)
  save_kept(call, 'sums', SUMS)
  save_kept(call, 'tallies', TALLY)
end

-- A page of a hash: fields and values by turns; and whether it is the last one.
function repairs.scan(call, job, name, count)
  local page = redis.call('HSCAN', key(call, name), job.cursor, 'COUNT', count or repairs.PAGE)
  job.cursor, call.repair.left = page[1], call.repair.left - #page[2] / 2
  return page[2], page[1] == '0'
end

-- What is known of tasks: {header, bytes, record, run, death, asked, place}, by id; nothing of an id without a task.
function repairs.facts(call, ids)
  local facts, found = {}, records.of(call, ids)
  local runs, deaths = redis.call('HMGET', key(call, 'runs'), unpack(ids)), redis.call('HMGET', key(call, 'dead'),
    unpack(ids))
  local asked = redis.call('HMGET', key(call, 'task_options'), unpack(ids))
  for i, id in ipairs(ids) do
    if records.is_task(found[i]) then
      local header, bytes = records.read(found[i])
      local fact = {header = header, bytes = bytes, record = found[i], run = runs[i] and RUN.unpack(runs[i]),
        death = deaths[i] and DEATH.unpack(deaths[i]), asked = asked[i] and TASK_OPTIONS.unpack(asked[i]),
        place = 'waiting'}
      if fact.death then
        fact.place = 'dead'
      elseif fact.run and leases.is_leased(fact.run.state) then
        fact.place = 'leased'
      end
      facts[id] = fact
    end
  end
  return facts
end

-- Takes fields out of a hash that are of no task, or not right.
local function prune_hash(call, job, name, is_right)
  local flat, is_last = repairs.scan(call, job, name)
  local ids, wrong = {}, {}
  for i = 1, #flat, 2 do ids[#ids + 1] = flat[i] end
  local facts = #ids > 0 and repairs.facts(call, ids) or {}
  for _, id in ipairs(ids) do
    if not facts[id] or not is_right(facts[id]) then wrong[#wrong + 1] = id end
  end
  write('HDEL', key(call, name), wrong)
  repairs.note(call, name, #wrong)
  return is_last
end

function jobs.runs(call, job) return prune_hash(call, job, 'runs', function(fact) return not fact.death end) end

function jobs.dead(call, job) return prune_hash(call, job, 'dead', function() return true end) end

function jobs.task_options(call, job)
  local function has_options(fact) return fact.header.features % 2 == HAS_OPTIONS end
  local is_last = prune_hash(call, job, 'task_options', has_options)
  if is_last then
    local count = redis.call('HLEN', key(call, 'task_options'))
    repairs.note(call, 'counts', count ~= call.queue.tasks_with_options and 1 or 0)
    call.queue.tasks_with_options = count
  end
  return is_last
end

-- Takes members out of a sorted set that are not right; judge(ids) returns what says so of an id and its score.
local function prune_set(call, job, name, kind, judge)
  local at, first = key(call, name), tonumber(job.cursor)
  local page, ids, wrong = redis.call('ZRANGE', at, first, first + repairs.PAGE - 1, 'WITHSCORES'), {}, {}
  for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
  if #ids == 0 then return true end
  local is_right = judge(ids)
  for i, id in ipairs(ids) do
    if not is_right(id, tonumber(page[2 * i])) then wrong[#wrong + 1] = id end
  end
  write('ZREM', at, wrong)
  repairs.note(call, kind, #wrong)
  job.cursor, call.repair.left = text(first + #ids - #wrong), call.repair.left - #ids
  return false
end
repairs.prune_set = prune_set

-- The same of a set of tasks' ids: is_right(fact, score, id).
local function prune_tasks(call, job, name, kind, is_right)
  return prune_set(call, job, name, kind, function(ids)
    local facts = repairs.facts(call, ids)
    return function(id, score) return facts[id] and is_right(facts[id], score, id) end
  end)
end

function jobs.expiring(call, job)
  return prune_tasks(call, job, 'expiring', 'expiring', function(fact, score)
    return fact.place == 'waiting' and fact.header.expires_at == score
  end)
end

local function died_then(fact, score) return fact.death and fact.death.died_at == score end

function jobs.deaths(call, job) return prune_tasks(call, job, 'deaths', 'dead', died_then) end

function jobs.buried(call, job)
  return prune_tasks(call, job, 'deaths:' .. job.rest, 'dead', function(fact, score)
    return died_then(fact, score) and fact.header.tenant == job.rest
  end)
end

function jobs.extended(call, job)
  return prune_tasks(call, job, 'extended', 'leases', function(fact)
    return fact.place == 'leased' and fact.run.is_extended == 1
  end)
end

function jobs.delayed(call, job)
  return prune_tasks(call, job, 'delayed:' .. job.rest, 'delayed', function(fact)
    return fact.place == 'waiting' and fact.header.tenant == job.rest
  end)
end

-- The unfinished batch that a task belongs to, if any.
function repairs.batch_of(call, fact)
  local asked = fact.asked
  local b = asked and asked.batch ~= '' and batches.find(call, asked.batch)
  return b and b.state ~= COMPLETE and b.created_at == asked.opened_at and b or nil
end

function jobs.pending(call, job)
  return prune_tasks(call, job, 'pending:' .. job.rest, 'pending', function(fact, _, id)
    return fact.place == 'waiting' and repairs.batch_of(call, fact) and fact.asked.batch == job.rest
      and not redis.call('ZSCORE', key(call, 'delayed:' .. fact.header.tenant), id)
  end)
end

function jobs.members(call, job)
  return prune_tasks(call, job, 'members:' .. job.rest, 'batches', function(fact)
    return not fact.death and repairs.batch_of(call, fact) and fact.asked.batch == job.rest
  end)
end

end
