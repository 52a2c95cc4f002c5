-- needs: accounts, errors, records
--
-- Leases: a worker's right to a task until a deadline.
--
-- What one claim takes is a *bundle*: one number, one entry in `leases` with the deadline, one record in `bundles` that
-- names the tasks. The number is the fence: (id, lease) opens one lease, and never a later one of the same id. No
-- number is given twice, not even after a failover to a store that lost the last ones, since numbers grow with time.
-- A lease that is extended has a deadline of its own, in `extended`. Deadlines count from `queue.origin`.
--
-- A *run* in `runs` is the part of a task that changes: its lease, its attempts. It exists from the first lease on.
-- While the task waits for its next attempt, `began_at` says since when it is ready, or when it will be, and `lasts`
-- how many seconds before that the wait began.

-- run.state: leased (perhaps asked to stop), or how the last lease ended. It distinguishes a repeated settlement from a
-- late one.
local LEASED, SETTLED, REAPED, STOPPING = 0, 1, 2, 3
leases.LEASED, leases.SETTLED, leases.REAPED, leases.STOPPING = LEASED, SETTLED, REAPED, STOPPING

local MAX_TAKEN = 255  -- then the count begins again: an old holder has long given up
local TAG_AT, TAG_END = LEASE.size - 7, LEASE.size - 4  -- a LEASE ends in tag and attempt, four bytes each
local FIRST_MS, PER_MS = 1735689600000, 32  -- 2025; more numbers for each ms than any queue can use

-- The number of the bundle that begins now.
function leases.next_number(call)
  return math.max(call.queue.last_lease + 1, (call.now - FIRST_MS) * PER_MS)
end

function leases.is_leased(state)
  return state == LEASED or state == STOPPING
end

function leases.field(lease)
  return string.format('%.0f', lease)
end

-- The ids that a bundle's record names.
function leases.ids_of(bundle)
  local ids = {}
  for id in bundle.ids:gmatch('%C+') do ids[#ids + 1] = id end
  return ids
end

-- The attempt after which a failure is final; without a limit: minus the attempts that did not count.
function leases.last_attempt(max_attempts, uncounted)
  return max_attempts > 0 and max_attempts + uncounted or -uncounted
end

-- Loads the runs missing from call.runs (packed; false where a task has none), and the accounts of their tenants.
function leases.read_runs(call, ids)
  local packed, missing, tags, n = call.runs, ids, {}, 0
  if next(packed) then
    missing = {}
    for _, id in ipairs(ids) do
      if packed[id] == nil then missing[#missing + 1] = id end
    end
  end
  if #missing == 0 then return end
  local found = redis.call('HMGET', call.prefix .. 'runs', unpack(missing))
  for i = 1, #missing do
    local run = found[i]
    packed[missing[i]] = run
    local tag = run and run:sub(TAG_AT, TAG_END)
    if tag and not tags[tag] then  -- of many runs that are settled at once most are of few tenants
      n = n + 1
      tags[n], tags[tag] = tag, true
    end
  end
  accounts.read(call, tags)
end

-- The run of a task that `read_runs` has read; nil if there is none.
function leases.run_of(call, id)
  local packed = call.runs[id]
  return packed and RUN.unpack(packed) or nil
end

-- The LEASE of such a run; nil if there is none.
function leases.lease_of(call, id)
  local packed = call.runs[id]
  return packed and LEASE.unpack(packed) or nil
end

-- Notes in a run of the tenant why the task has failed, or is put off.
function leases.set_error(call, account, run, message)
  local kept = errors.fit(call, account, message, run.error)
  local more = errors.bytes_of(kept) - errors.bytes_of(run.error)
  run.error, run.bytes = kept, run.bytes + more
  accounts.add_bytes(call, account, more)
end

-- Stores a changed run; nil deletes it.
function leases.set_run(call, id, run)
  call.runs[id] = run and RUN.pack(run) or false
  table.insert(table_in(call, 'changed_runs'), id)
end

-- Makes the task of this run wait from now until then.
function leases.set_wait(call, run, ready_at)
  run.began_at, run.lasts = ready_at, math.ceil((ready_at - call.now) / 1000)
end

-- Keeps a run of a task that has none, and waits until then; its attempts so far do not count.
function leases.set_new_run(call, id, header, bytes, tag, attempts, ready_at)
  leases.set_run(call, id, RUN.new{state = REAPED, features = header.features, bytes = bytes, tag = tag,
    began_at = ready_at, attempt = attempts, uncounted_attempts = attempts, max_attempts = header.max_attempts,
    expires_at = header.expires_at > call.now and header.expires_at or 0})
end

-- Reads these bundles, in one command.
function leases.read_bundles(call, numbers)
  local bundles, missing, fields, n = call.bundles, {}, {}, 0
  for i = 1, #numbers do
    local lease = numbers[i]
    if lease ~= numbers[i - 1] and bundles[lease] == nil then
      n = n + 1
      bundles[lease], missing[n], fields[n] = false, lease, leases.field(lease)
    end
  end
  if n == 0 then return end
  local found = redis.call('HMGET', call.prefix .. 'bundles', unpack(fields))
  for i = 1, n do
    local bundle = found[i] and BUNDLE.unpack(found[i])
    if bundle then bundle.field = fields[i] end
    bundles[missing[i]] = bundle
  end
end

-- A bundle, or nil.
function leases.bundle(call, lease)
  if call.bundles[lease] == nil then leases.read_bundles(call, {lease}) end
  return call.bundles[lease] or nil
end

-- Extends the lease by lease_ms, or by its first length if that was longer: its worker does not know of the change and
-- renews after a third of the first length. `is_taken`: another connection owns it from now on. Returns its run.
function leases.extend(call, id, is_taken)
  local run = leases.run_of(call, id)
  local lasts = math.max(run.lasts, call.queue.lease_ms)
  if is_taken then run.takeovers = run.takeovers % MAX_TAKEN + 1 end
  if is_taken or run.is_extended == 0 or lasts > run.lasts then
    local bundle = run.is_extended == 0 and leases.bundle(call, run.lease)
    if bundle then bundle.together, bundle.is_changed = bundle.together - 1, true end
    run.is_extended, run.lasts = 1, lasts
    leases.set_run(call, id, run)
  end
  call.is_changed = true
  local extended = table_in(call, 'extended')
  table.insert(extended, call.at + lasts)
  table.insert(extended, id)
  return run
end

-- Drops what a bundle holds without an extension: no task is leased under its deadline any more.
function leases.drop_unextended(call, lease)
  local bundle = leases.bundle(call, lease)
  if bundle then
    bundle.left, bundle.together, bundle.is_changed = math.max(bundle.left - bundle.together, 0), 0, true
  else
    redis.call('ZREM', call.prefix .. 'leases', leases.field(lease))
  end
end

local function write_bundles(call)
  local fields, gone, names, untimed = nil, {}, {}, {}
  for _, bundle in pairs(call.bundles) do
    if bundle and bundle.is_changed then
      local field = bundle.field
      if bundle.together == 0 then untimed[#untimed + 1] = field end
      if bundle.left > 0 then
        fields = fields or {}
        fields[#fields + 1], fields[#fields + 2] = field, BUNDLE.pack(bundle)
      else
        gone[#gone + 1], names[#names + 1] = field, bundle.claim
      end
    end
  end
  if fields then redis.call('HSET', call.prefix .. 'bundles', unpack(fields)) end
  if #untimed > 0 then redis.call('ZREM', call.prefix .. 'leases', unpack(untimed)) end
  if #gone > 0 then
    redis.call('HDEL', call.prefix .. 'bundles', unpack(gone))
    redis.call('HDEL', call.prefix .. 'claims', unpack(names))
  end
  call.bundles = {}
end

local function write_runs(call)
  local fields, gone = {}, {}
  for _, id in ipairs(call.changed_runs) do
    local packed = call.runs[id]
    if packed then
      fields[#fields + 1], fields[#fields + 2] = id, packed
    else
      gone[#gone + 1] = id
    end
  end
  write('HSET', call.prefix .. 'runs', fields)
  write('HDEL', call.prefix .. 'runs', gone)
  call.changed_runs = false
end

-- Writes what became of leases, each kind in one command.
function leases.write(call)
  if call.changed_runs then write_runs(call) end
  if call.extended then
    write('ZADD', call.prefix .. 'extended', call.extended)
    call.extended = false
  end
  if call.ended then
    write('ZREM', call.prefix .. 'extended', call.ended)
    call.ended = false
  end
  if next(call.bundles) then write_bundles(call) end
  if call.marks then records.write_marks(call) end
end

-- Writes a new bundle of these ids, in order; `runs`: ids and packed runs alternately.
function leases.write_new(call, lease, claim_name, ids, runs)
  local field = leases.field(lease)
  call.queue.last_lease = lease
  redis.call('HSET', call.prefix .. 'bundles', field,
    struct.pack(BUNDLE.format, #ids, #ids, #claim_name, claim_name, 0, '') .. table.concat(ids, '\n'))
  redis.call('ZADD', call.prefix .. 'leases', call.at + call.queue.lease_ms, field)
  redis.call('HSET', call.prefix .. 'claims', claim_name, field)
  redis.call('HSET', call.prefix .. 'runs', unpack(runs))
end
