-- needs: accounts, batches, limits, places, records, task_options
--
-- New tasks: reading their options, deciding which are accepted, and storing them.

local RETRY_MS = {1000, 60000}  -- least and greatest wait that a refusal suggests
local TIMES = {'delay', 'start_at', 'expires_in', 'expires_at', 'expires_after_start', 'dedupe_period', 'result_ttl',
  'retry_base', 'retry_cap'}

-- Reads who is to be notified from the last argument, if it says so (`wake <server>`, `covered`). Returns the index of
-- the last argument that belongs to the tasks.
function arrivals.read_notify(call, args)
  local last = #args % 3 == 1 and args[#args] or ''
  local server = last:match('^wake (.+)$')
  if server then
    call.notify = '1 ' .. server
  elseif last == 'covered' then
    call.notify = false
  else
    return #args
  end
  return #args - 1
end

-- Reads a task's options (OPTIONS in KEYS.md; empty: all are defaults). Returns its terms: absolute times, the rare
-- options (asked) and the features of its record. `due_at`: the start of a schedule's task, else nil.
function arrivals.read_options(call, packed, due_at)
  if packed == '' then
    return {start_at = 0, expires_at = 0, max_attempts = call.queue.max_attempts, asked = PLAIN, dedupe_period = 0,
      features = 0, replace = 0, name = '', trace = ''}
  end
  if #packed < OPTIONS.size then refuse('bad_request', 'options') end
  local options = OPTIONS.unpack(packed)
  for _, name in ipairs(TIMES) do
    if not (options[name] >= 0 and options[name] <= HORIZON_MS) then refuse('bad_request', 'options') end
  end
  if options.priority > MAX_PRIORITY then refuse('bad_request', 'priority') end
  if options.group:find('%c') then refuse('bad_request', 'group') end
  if options.name:find('%c') then refuse('bad_request', 'name') end
  if options.replace > 0 and (options.dedupe_key == '' or options.batch ~= '') then refuse('bad_request', 'replace') end
  local from = records.counted_from(call)
  if options.delay > 0 then options.start_at, options.start_from = call.now + options.delay, from end
  if due_at then options.start_at, options.start_from = due_at, 0 end
  if options.expires_in > 0 then options.expires_at, options.end_from = call.now + options.expires_in, from end
  local moves = options.expires_after_start > 0
  if moves then
    local has_start = options.start_at > 0
    options.expires_at = (has_start and options.start_at or call.now) + options.expires_after_start
    options.end_from = has_start and (options.start_from or 0) or from
  end
  if options.max_attempts < 0 then options.max_attempts = call.queue.max_attempts end
  options.asked = task_options.asked_by(options)
  options.features = (moves and END_MOVES or 0) + (options.asked == PLAIN and 0 or HAS_OPTIONS)
  return options
end

-- Refuses a task unless its batch is open and of the same tenant. Remembers when that batch was opened.
local function check_batch(call, tenant, asked)
  local batch = batches.find(call, asked.batch)
  if not batch or batch.tenant ~= tenant then refuse('not_found', 'batch') end
  if batch.state ~= OPENED then refuse('batch_closed', 'batch') end
  asked.opened_at = batch.created_at
end

-- Tasks of one call that will be stored; nothing is written before all are known. `replaced`: those that will be
-- cancelled for them; `freed_bytes` and `freed_delayed`: the room that these leave. `bytes`: what the tasks count, with
-- dedupe keys that are held for a period (`key_bytes`). `has_duplicates`: some may not be stored, for others are known.
function arrivals.new(tenant)
  return {tenant = tenant, records = {}, payloads = false, ready = {}, delayed = false, expiring = false,
    tasks_with_options = false, replaced = {}, freed_bytes = 0, freed_delayed = 0, holders = false, bytes = 0,
    key_bytes = 0}
end

-- Adds one task to those that will be stored.
function arrivals.add(call, new, id, payload, terms)
  local start_at, expires_at, asked, all, ready = terms.start_at, terms.expires_at, terms.asked, new.records, new.ready
  local record, is_large, bytes = records.make(call, new.tenant, id, payload, terms)
  local n = #all
  all[n + 1], all[n + 2] = id, record
  if is_large and not terms.stored_bytes then
    table.insert(table_in(new, 'payloads'), id)
    table.insert(new.payloads, payload)
  end
  new.bytes = new.bytes + bytes
  if start_at > call.now then
    table.insert(table_in(new, 'delayed'), start_at)
    table.insert(new.delayed, id)
  else
    ready[#ready + 1] = id
  end
  if expires_at > 0 then
    table.insert(table_in(new, 'expiring'), expires_at)
    table.insert(new.expiring, id)
  end
  if asked ~= PLAIN then
    table.insert(table_in(new, 'tasks_with_options'), {id, asked, terms.dedupe_period})
    if asked.dedupe_key ~= '' then
      table_in(new, 'holders')[asked.dedupe_key] = {id = id, record = record, bytes = bytes, batch = asked.batch,
        is_delayed = start_at > call.now}
      if terms.dedupe_period > 0 then
        local more = accounts.bytes_of(asked.dedupe_key, #id)
        new.bytes, new.key_bytes = new.bytes + more, new.key_bytes + more
      end
    end
  end
end

-- Decides on one task and returns its outcome. If another task holds its dedupe key, also returns that task's id, and
-- its entry in `new` if it came with the same call.
function arrivals.admit(call, new, id, payload, terms)
  local asked = terms.asked
  if asked.batch ~= '' then check_batch(call, new.tenant, asked) end
  if terms.expires_at > 0 and terms.expires_at <= math.max(terms.start_at, call.now) then return 'expired' end
  if asked.dedupe_key ~= '' then
    local own = new.holders and new.holders[asked.dedupe_key]
    local holder = own and own.id or task_options.holder_of(call, new.tenant, asked.dedupe_key)
    if holder then
      new.has_duplicates = true
      return 'duplicate ' .. holder, holder, own
    end
  end
  arrivals.add(call, new, id, payload, terms)
  return 'ok'
end

-- How long a task of a tenant takes, or waits for its token, at least.
local function task_ms(account, allowed)
  local least_ms = allowed.rate > 0 and 1000 / allowed.rate or 1
  return math.max(account.estimate / math.max(account.leased, 1), least_ms)
end

-- Which limit new tasks would exceed, and in how many ms there may be room; nil if there is.
function arrivals.exceeded(call, new)
  local account, count = accounts.named(call, new.tenant), #new.records / 2
  local allowed, pending, delayed = limits.of(call, account), accounts.later_of(call, account)
  if not call.details[new.tenant] and redis.call('HLEN', call.prefix .. 'accounts') >= call.queue.max_tenants then
    return 'max_tenants', RETRY_MS[2]
  end
  local waiting = account.ready + pending + delayed
  local delaying = (new.delayed and #new.delayed / 2 or 0) - new.freed_delayed
  local excess = waiting + count - #new.replaced - allowed.queued
  if excess > 0 and allowed.queued > 0 and count > 0 then return 'queued', excess * task_ms(account, allowed) end
  local bytes = limits.kept_by(call, account, allowed.stored_bytes)
  excess = bytes + new.bytes - new.freed_bytes - allowed.stored_bytes
  if excess > 0 and allowed.stored_bytes > 0 and new.bytes > 0 then
    return 'stored_bytes', excess / math.max(bytes, 1) * waiting * task_ms(account, allowed)
  end
  if delaying > 0 and allowed.delayed > 0 and delayed + delaying > allowed.delayed then
    local first = redis.call('ZRANGE', call.prefix .. 'delayed:' .. account.name, 0, 0, 'WITHSCORES')[2]
    return 'delayed', math.floor(first or call.now) - call.now
  end
end

-- Refuses tasks beyond the tenant's limits. Reserves their bytes until they are stored, so that results and errors of
-- tasks that end in this call cannot use them.
function arrivals.check_quotas(call, new)
  local limit, wait_ms = arrivals.exceeded(call, new)
  if limit then
    refuse('quota_exceeded', string.format('%s %.0f', limit, math.max(RETRY_MS[1], math.min(RETRY_MS[2], wait_ms))))
  end
  call.incoming_bytes = new.bytes
end

-- Adds bytes to a tenant. Refuses what exceeds its limit, and a new tenant if there are too many.
function arrivals.add_bytes(call, tenant, bytes)
  local new = arrivals.new(tenant)
  new.bytes = bytes
  arrivals.check_quotas(call, new)
  call.incoming_bytes = 0
  accounts.add_bytes(call, accounts.touch_named(call, tenant), bytes)
end

-- Stores the rare options of tasks: {id, options, period of the dedupe key} each.
local function store_options(call, account, tasks)
  task_options.add(call, tasks)
  for _, task in ipairs(tasks) do
    local id, asked, period = unpack(task)
    if asked.dedupe_key ~= '' then task_options.hold_key(call, account, id, asked.dedupe_key, period) end
    if asked.batch ~= '' then
      local batch = batches.find(call, asked.batch)
      batch.total = batch.total + 1
      batches.add_member(call, batch, id)
    end
  end
end

-- Stores these tasks; there is one at least.
function arrivals.store(call, new)
  local account = accounts.touch_named(call, new.tenant)
  redis.call('HSET', call.prefix .. 'tasks', unpack(new.records))
  if new.payloads then write('HSET', call.prefix .. 'payloads', new.payloads) end
  accounts.add_bytes(call, account, new.bytes - new.key_bytes)  -- the keys count as they are held
  call.incoming_bytes = 0
  task_options.drop_results(call, new.records)
  if new.tasks_with_options then store_options(call, account, new.tasks_with_options) end
  if #new.ready > 0 then places.put_ready(call, account, new.ready) end
  if new.delayed then places.put_delayed(call, account, new.delayed) end
  if new.expiring then write('ZADD', call.prefix .. 'expiring', new.expiring) end
  call.queue.enqueued = call.queue.enqueued + #new.records / 2
end
