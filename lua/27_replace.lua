-- Replacing: a task that is enqueued with `replace` gives what it asks for to the waiting task that holds its dedupe
-- key.
--
-- That one keeps its id, its batch and the key, and takes the new payload, start, end, priority and all else, with as
-- many attempts as a new task has. It stands where a new task would stand. One that runs, or has ended, takes nothing:
-- the new task is its duplicate, as without `replace`. The new task's id is remembered for as long as one that has
-- ended, with the other's, so that the call can be repeated.

local replacing = {}  -- what other sections call
do

-- The waiting task of that id; nil if there is none.
local function find_waiting(call, id)
  local record = redis.call('HGET', key(call, 'tasks'), id)
  if not records.is_task(record) or redis.call('HEXISTS', key(call, 'dead'), id) == 1 then return nil end
  leases.read_runs(call, {id})
  local run = leases.run_of(call, id)
  if run and leases.is_leased(run.state) then return nil end
  local header, bytes = records.read(record)
  return {id = id, header = header, bytes = bytes, run = run}
end

-- Has the holder of a task's dedupe key take what the task asks for, if it waits; returns the outcome. A key that is
-- held for a period outlives its task, whose id may be that of another one by then.
function replacing.admit(call, new, task, holder)
  local found = find_waiting(call, holder)
  if not found or task_options.of(call, holder).key ~= task.terms.asked.key then return 'duplicate ' .. holder end
  local was_delayed = redis.call('ZSCORE', key(call, 'delayed:' .. new.name), holder)
  local terms = task.terms
  found.task, new.holders[terms.asked.key] = task, holder
  new.replaced[#new.replaced + 1], new.bytes = found, new.bytes + #task.payload - found.bytes
  if terms.start_at > call.now and not was_delayed then new.more_delayed = new.more_delayed + 1 end
  return 'replaced ' .. holder
end

-- The run of a task that has been leased before: the attempts so far do not count any more.
local function renew_run(call, found, features)
  local run, terms = found.run, found.task.terms
  if not run then return end
  run.uncounted_attempts, run.max_attempts, run.expires_at = run.attempt, terms.max_attempts, terms.expires_at
  run.bytes, run.features, run.error = #found.task.payload, features, ''
  leases.set_run(call, found.id, run)
end

local function write_record(call, new, found)
  local task, id = found.task, found.id
  local record, is_large = records.make(call, new.name, task.payload, task.terms)
  redis.call('HSET', key(call, 'tasks'), id, record)
  if is_large then
    redis.call('HSET', key(call, 'payloads'), id, task.payload)
  elseif found.header.features >= IS_LARGE then
    redis.call('HDEL', key(call, 'payloads'), id)
  end
  renew_run(call, found, records.read(record).features)
end

local function replace_one(call, new, t, found)
  local id, terms, previous, asked = found.id, found.task.terms, task_options.of(call, found.id), {}
  places.take_out(call, t, id)
  if found.header.expires_at > 0 then redis.call('ZREM', key(call, 'expiring'), id) end
  for name, value in pairs(terms.asked) do asked[name] = value end
  asked.batch, asked.opened_at = previous.batch, previous.opened_at
  task_options.set(call, id, asked)
  task_options.hold_key(call, t, id, asked.key, terms.period)
  write_record(call, new, found)
  if terms.expires_at > 0 then redis.call('ZADD', key(call, 'expiring'), terms.expires_at, id) end
  places.put(call, t, id, terms.start_at)
  records.mark_replaced(call, found.task.id, id)
end

-- Writes what tasks have taken.
function replacing.store(call, new)
  if #new.replaced == 0 then return end
  local t = accounts.touch_named(call, new.name)
  for _, found in ipairs(new.replaced) do replace_one(call, new, t, found) end
  leases.write(call)
end

end
