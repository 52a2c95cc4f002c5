-- The verb `settle`: what becomes of a lease. The fence is (id, lease): no number is given twice, so a late
-- owner can never touch the lease that came after its own.
--
--   action   the lease ends, and the task is                                       the attempt
--   ack      done: forgotten, its id remembered                                     counts
--   ack_with_result   as ack, and its result kept where the task asked for it                counts
--   nack     delayed by detail (ms; empty: backoff with full jitter), or dead       counts
--   reject   dead at once, `rejected`                                               counts
--   postpone delayed by detail (ms)                                                 does not: max_attempts moves up
--   release  back at the head of its tenant's list                                  does not
--   reap     as release, or dead as `lease_lost` when it was the last               counts
--   extend   (the lease goes on for another lease_ms)                               -
--   take     as extend, by another connection than before                           -
--
-- A task that was cancelled while it was leased (STOPPING) is done if its owner acks it; any other end of the lease
-- makes it cancelled: forgotten, its id remembered so.

local settlements = {}  -- what other sections call
do

-- Ends a call that may have ended tasks.
function settlements.close(call)
  batches.finish(call)
  leases.write(call)
  calls.close(call)
end

-- Forgets a task that has come to its end (`how`: done or cancelled). Its id is remembered with the lease, if its own
-- owner ended it; else with 0, so that the owner's settlement is stale.
function settlements.forget(call, t, id, how, lease, attempt, features, bytes)
  leases.set_run(call, id, nil)
  records.mark(call, id, how, lease, features)
  accounts.add_bytes(call, t, -bytes)
  call.queue[how] = call.queue[how] + 1
  if features % 2 == 0 then return end
  batches.note_end(call, id, how)
  feeds.tell_of(call, t, id, how, attempt, '')
  task_options.drop(call, t.name, id)
end

function settlements.bury(call, t, id, run, reason)
  leases.set_run(call, id, nil)
  places.put_dead(call, t, id, reason, run)
end

local function end_run(call, id, state)
  local run = leases.run_of(call, id)
  run.state, run.is_extended = state, 0
  return run
end

local function is_last_attempt(run)
  return run.max_attempts > 0 and run.attempt - run.uncounted_attempts >= run.max_attempts
end

-- The task waits for its next attempt, its run with it; the window's end is watched again.
local function keep_waiting(call, id, run)
  leases.set_run(call, id, run)
  if run.expires_at > 0 then redis.call('ZADD', key(call, 'expiring'), run.expires_at, id) end
end

-- Full jitter: anywhere up to min(cap, base * 2^(attempt - 1)), of the attempts that count.
local function backoff_ms(call, run)
  local q, failed = call.queue, math.min(run.attempt - run.uncounted_attempts - 1, 40)
  return math.floor(calls.random(call) * math.min(q.retry_cap_ms, q.retry_base_ms * 2 ^ failed)) + 1
end

-- What becomes of a task of tenant t whose lease has just ended.
local actions = {}
local ARGUMENTS = {ack = 3, ack_with_result = 4, nack = 5, postpone = 5, reject = 4, release = 3, reap = 3, extend = 3,
  take = 3}  -- of each action
-- These, and all of tasks that ask for more, are work:
local HEAVY = {ack_with_result = true, nack = true, postpone = true, reject = true}
local LIGHT_WORK, HEAVY_WORK, WORK_PER_CALL = 1, 8, 300    -- a call leaves the rest to the next
local WORKED = {ack = true, ack_with_result = true, nack = true, reject = true}  -- the handler came to an end

local function end_well(call, t, id, lease)
  settlements.forget(call, t, id, 'done', lease.lease, lease.attempt, lease.features, lease.bytes)
  local books = accounts.books_of(call, t)
  books.done = books.done + 1
end

function actions.ack(call, t, id, lease)
  if lease.features % 2 == HAS_OPTIONS then task_options.keep_result(call, t, id, 'null') end
  end_well(call, t, id, lease)
end

function actions.ack_with_result(call, t, id, lease, result)
  task_options.keep_result(call, t, id, result)
  end_well(call, t, id, lease)
end

function actions.nack(call, t, id, _, delay, message)
  local run = end_run(call, id, leases.SETTLED)
  run.error = message:sub(1, ERROR_BYTES)
  feeds.tell_of(call, t, id, 'failed', run.attempt, run.error)
  if is_last_attempt(run) then return settlements.bury(call, t, id, run, EXHAUSTED) end
  keep_waiting(call, id, run)
  places.put(call, t, id, call.now + (tonumber(delay) or backoff_ms(call, run)))
end

function actions.reject(call, t, id, _, message)
  local run = end_run(call, id, leases.SETTLED)
  run.error = message:sub(1, ERROR_BYTES)
  feeds.tell_of(call, t, id, 'failed', run.attempt, run.error)
  settlements.bury(call, t, id, run, REJECTED)
end

function actions.postpone(call, t, id, _, delay, message)
  local run = end_run(call, id, leases.SETTLED)
  run.uncounted_attempts, run.error = run.uncounted_attempts + 1, message:sub(1, ERROR_BYTES)
  keep_waiting(call, id, run)
  places.put(call, t, id, call.now + tonumber(delay))
end

function actions.release(call, t, id)
  local run = end_run(call, id, leases.SETTLED)
  run.uncounted_attempts = run.uncounted_attempts + 1
  keep_waiting(call, id, run)
  places.put_ready(call, t, {id}, 'LPUSH')
end

function actions.reap(call, t, id)
  local run = end_run(call, id, leases.REAPED)
  feeds.tell_of(call, t, id, 'failed', run.attempt, REASONS[LEASE_LOST])
  if is_last_attempt(run) then return settlements.bury(call, t, id, run, LEASE_LOST) end
  keep_waiting(call, id, run)
  places.put_ready(call, t, {id}, 'LPUSH')
end

-- Why this number does not open a lease: `gone` if its owner settled it already, or there is no such lease; else
-- `stale`.
local function refusal(call, id, number)
  local lease = leases.lease_of(call, id)
  if lease then return lease.lease == number and lease.state == leases.SETTLED and 'gone' or 'stale' end
  leases.write(call)  -- it may be this call that settled it
  local death = redis.call('HGET', key(call, 'dead'), id)
  if death then
    death = DEATH.unpack(death)
    local is_own = death.lease == number and (death.reason == EXHAUSTED or death.reason == REJECTED)
    return is_own and 'gone' or 'stale'
  end
  local how, settled_by = records.read_mark(redis.call('HGET', key(call, 'tasks'), id))
  return how and settled_by ~= number and 'stale' or 'gone'
end

-- Ends or extends the lease of this number (nil: whichever it is), which was worked on up to `until_ms`.
function settlements.settle(call, action, id, number, until_ms, ...)
  local lease = leases.lease_of(call, id)
  if not lease or number and lease.lease ~= number or not leases.is_leased(lease.state) then
    return refusal(call, id, number)
  end
  local is_stopping, is_done = lease.state == leases.STOPPING, action == 'ack' or action == 'ack_with_result'
  if action == 'extend' then
    leases.extend(call, id)
    return is_stopping and 'cancelled' or 'ok'
  elseif action == 'take' then
    return (is_stopping and 'cancelled ' or 'ok ') .. leases.take(call, id)
  end
  local is_worked = WORKED[action] and (is_done or not is_stopping)
  local t = leases.finish(call, id, lease, math.min(call.now, until_ms), is_worked)
  if is_stopping and not is_done then
    local is_reaped = action == 'reap'
    settlements.forget(call, t, id, 'cancelled', is_reaped and 0 or lease.lease, is_reaped and 0 or lease.attempt,
      lease.features, lease.bytes)
  else
    actions[action](call, t, id, lease, ...)
  end
  return 'ok'
end

-- Reads the number of a lease, and how often it was taken over where that is to be the fence too.
local function read_number(text)
  local number, taken = tonumber(text), nil
  if not number then
    number, taken = text:match('^(%d+)/(%d+)$')
    number, taken = tonumber(number), tonumber(taken)
  end
  return number and number % 1 == 0 and number or -1, taken
end

-- Whether another connection has taken the lease over since the one that has seen it taken so often.
local function is_taken(call, id, number, taken)
  local lease = taken and leases.lease_of(call, id)
  return lease and lease.lease == number and leases.is_leased(lease.state) and lease.taken ~= taken
end

-- Reads the arguments of `settle`: the ids, where each settlement begins, the numbers, how often they were taken.
local function read_settlements(args)
  local ids, starts, numbers, taken, at = {}, {}, {}, {}, 3
  while at <= #args do
    local action, n = args[at], #ids + 1
    if not ARGUMENTS[action] then refuse('bad_request', 'action') end
    numbers[n], taken[n] = read_number(args[at + 2] or '')
    ids[n], starts[n], at = args[at + 1], at, at + ARGUMENTS[action]
    if at > #args + 1 then refuse('bad_request', 'settlements') end
    if action == 'nack' and args[at - 2] ~= '' or action == 'postpone' then
      local delay = tonumber(args[at - 2])
      if not (delay and delay >= 0 and delay <= HORIZON_MS) then refuse('bad_request', 'delay_ms') end
    end
  end
  if #ids == 0 or #ids > TASKS_PER_CALL then refuse('bad_request', 'settlements') end
  return ids, starts, numbers, taken
end

-- Reads what the leases belong to: bundles, and what the tasks asked for. Returns their features, if any asks for more.
local function read_more(call, ids, numbers)
  local features = {}
  leases.read_bundles(call, numbers)
  if call.queue.tasks_with_options == 0 then return features end
  for i, id in ipairs(ids) do
    local lease = leases.lease_of(call, id)
    features[i] = lease and lease.features or HAS_OPTIONS
  end
  task_options.read_of(call, ids, features)
  return features
end

-- settle(keys, argv): end or extend leases, each fenced by (id, lease).
--   keys  1 prefix
--   argv  1 now  2 random_values  then per lease (at most 500): action, id, lease (its number; with a slash and
--         how often it was taken over behind it that is part of the fence), and
--         for ack_with_result: result; for nack: delay_ms (may be empty), error; for postpone: delay_ms, error; for
--         reject: error
--   out   per lease: "ok" | "gone" (settled already by this owner, or long forgotten: not an error)
--         | "stale" (the lease was lost: another one owns or owned the task)
--         | "cancelled" (extended, but the task was cancelled: its owner shall stop);
--         for take, behind "ok " and "cancelled ", how often the lease was taken over (1 to 255, then 1). Fewer
--         than leases where those are too much for one call: nothing has become of the rest.
--   flags allow-oom
function verbs.settle(keys, args)
  local call, outcomes, changed = calls.open(keys, args), {}, false
  local ids, starts, numbers, taken = read_settlements(args)
  leases.read_runs(call, ids)
  local features, work = read_more(call, ids, numbers), 0
  for n = 1, #ids do
    local first = starts[n]
    local is_heavy = HEAVY[args[first]] or features[n] and features[n] % 2 == HAS_OPTIONS
    work = work + (is_heavy and HEAVY_WORK or LIGHT_WORK)
    if work > WORK_PER_CALL then break end
    outcomes[n] = is_taken(call, ids[n], numbers[n], taken[n]) and 'stale'
      or settlements.settle(call, args[first], ids[n], numbers[n], call.now, args[first + 3], args[first + 4])
    changed = changed or outcomes[n] ~= 'gone' and outcomes[n] ~= 'stale'
  end
  if changed then batches.finish(call) end
  leases.write(call)
  if changed then calls.close(call) end
  return outcomes
end

end
