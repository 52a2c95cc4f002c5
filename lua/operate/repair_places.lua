-- needs: accounts, batches, errors, leases, places, records, task_options
--
-- Repair (operate/repair.lua): puts the tasks that were set aside into their places, tenant by tenant.

local PLACES_PER_CALL = 64  -- tasks, or tenants, that one call puts into their places

-- Makes a run agree with its task's record; its lease gets the deadline of its bundle.
local function mend_run(call, account, id, run, header, bytes)
  local of_error = errors.bytes_of(run.error)
  run.tag, run.features, run.bytes, run.is_extended = account.tag, header.features, bytes + of_error, 0
  call.queue.last_lease = math.max(call.queue.last_lease, run.lease)
  accounts.add_bytes(call, account, of_error)
  leases.set_run(call, id, run)
end

local function put_leased(call, account, id, run)
  local queue, batch = call.queue, batches.of_task(call, id)
  account.leased = account.leased + 1
  account.starts = account.starts + math.max(run.began_at, queue.epoch_at)
  queue.leased = queue.leased + 1
  if batch then batch.admitted, batch.running = batch.admitted + 1, batch.running + 1 end
  local field = leases.field(run.lease)
  local bundle = leases.bundle(call, run.lease) or BUNDLE.new{field = field}
  bundle.ids = bundle.ids == '' and id or bundle.ids .. '\n' .. id
  bundle.left, bundle.together, bundle.is_changed = bundle.left + 1, bundle.together + 1, true
  call.bundles[run.lease] = bundle
  redis.call('ZADD', call.prefix .. 'leases', 'GT', text(call.at + run.lasts), field)
end

-- When a waiting task starts, if that is known and not over. The time of a retry stands nowhere else.
local function start_of(call, at, header, run)
  return at or not run and header.start_at > call.now and text(header.start_at)
end

-- Puts tasks of a tenant into their places.
local function put_tasks(call, account, ids)
  local found, ready, delayed = records.of(call, ids), {}, {}
  local starts = redis.call('ZMSCORE', call.prefix .. 'delayed:' .. account.name, unpack(ids))
  leases.read_runs(call, ids)
  task_options.read(call, ids)
  for i, id in ipairs(ids) do
    local header, bytes = records.read(found[i], id)
    local run, batch = leases.run_of(call, id), batches.of_task(call, id)
    accounts.add_bytes(call, account, bytes)
    if run then mend_run(call, account, id, run, header, bytes) end
    if batch then
      batch.total = batch.total + 1
      batches.add_member(call, batch, id)
    end
    if run and leases.is_leased(run.state) then
      put_leased(call, account, id, run)
    else
      if header.expires_at > 0 then redis.call('ZADD', call.prefix .. 'expiring', text(header.expires_at), id) end
      local start_at = start_of(call, starts[i], header, run)
      if start_at then
        delayed[#delayed + 1], delayed[#delayed + 2] = start_at, id
      else
        ready[#ready + 1] = id
      end
    end
  end
  if #ready > 0 then places.put_ready(call, account, ready) end
  -- the tenant's set of those is replaced when all its tasks are known
  if #delayed > 0 then places.put_delayed(call, account, delayed, 'repair:delayed:') end
end

-- Finishes a tenant when all its tasks have their places.
local function end_tenant(call, account)
  local delayed, copy = call.prefix .. 'delayed:' .. account.name, call.prefix .. 'repair:delayed:' .. account.name
  redis.call('UNLINK', delayed)  -- first: what RENAME replaces may be freed at once
  if redis.call('EXISTS', copy) == 1 then redis.call('RENAME', copy, delayed) end
  redis.call('ZREM', call.prefix .. 'repair:tenants', account.name)
end

function repair_places.write_batches(call)
  local fields = {}
  for id, batch in pairs(call.batches or {}) do
    if batch then fields[#fields + 1], fields[#fields + 2] = id, BATCH.pack(batch) end
  end
  write('HSET', call.prefix .. 'batches', fields)
end

-- Goes on with the first tenants that have tasks without a place.
function repair_places.put_all(call)
  local left = PLACES_PER_CALL
  for _, name in ipairs(redis.call('ZRANGE', call.prefix .. 'repair:tenants', 0, PLACES_PER_CALL - 1)) do
    local aside, account = call.prefix .. 'repair:tasks:' .. name, accounts.touch_named(call, name)
    local ids = redis.call('ZRANGE', aside, 0, left - 1)
    if #ids > 0 then
      put_tasks(call, account, ids)
      redis.call('ZREM', aside, unpack(ids))
    end
    if redis.call('EXISTS', aside) == 1 then break end
    end_tenant(call, account)
    left = left - #ids - 1
    if left <= 0 then break end
  end
  repair_places.write_batches(call)
  leases.write(call)
  return redis.call('EXISTS', call.prefix .. 'repair:tenants') == 1 and '0' or nil
end
