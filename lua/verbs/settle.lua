-- needs: accounts, arrivals, batch_ends, batches, calls, close, enqueue, leases, remembered, settlements, task_options
--
-- The verbs `settle` (tasks/settlements.lua): many settlements in one call; and `settle_linked`: one, with what follows
-- it.

-- How many arguments each action has:
local ARGUMENTS = {ack = 4, nack = 6, reject = 5, release = 5, reap = 3, lose = 3, lose_alone = 3, extend = 3, take = 3}
-- Actions that cost as much as HEAVY_WORK others. So do a release with a delay, and all actions on tasks with options.
local HEAVY = {nack = true, reject = true}
local HEAVY_WORK, WORK_PER_CALL = 8, 300  -- beyond which a call leaves the rest to the next
local LATE_MS = 1000  -- a call that arrives later was delayed: clocks differ by less

-- Reads the number of a lease and, if it is part of the fence, how often the lease was taken over.
local function read_fence(text)
  local number, taken = text:match('^(%d+)/(%d+)$')
  return tonumber(number) or -1, tonumber(taken)
end

-- Checks the delay of an action that has one, and returns what the action costs.
local function read_action(action, delay)
  if action ~= 'nack' and action ~= 'release' or (delay or '') == '' then return HEAVY[action] and HEAVY_WORK end
  delay = tonumber(delay)
  if not (delay and delay >= 0 and delay <= HORIZON_MS) then refuse('bad_request', 'delay_ms') end
  return HEAVY_WORK
end

-- Reads the arguments of `settle`: the ids, where each settlement begins, the numbers, how often they were taken, what
-- costs more than others, and when the call was sent, if it says so.
local function read_settlements(args)
  local ids, starts, numbers, taken, costs, at, n, sent = {}, {}, {}, {}, {}, 3, 0, nil
  while at <= #args do
    local action, number = args[at], tonumber(args[at + 2])
    local length = ARGUMENTS[action]
    if not length then
      if action ~= 'sent' then refuse('bad_request', 'action') end
      at, sent = at + 2, check_whole(args[at + 1], 'sent', 0, HORIZON_MS)
      break
    end
    n = n + 1
    if not number or number % 1 ~= 0 then number, taken[n] = read_fence(args[at + 2] or '') end
    ids[n] = args[at + 1]
    starts[n] = at
    numbers[n] = number
    if action ~= 'ack' then costs[n] = read_action(action, args[at + 3]) end
    at = at + length
  end
  if at ~= #args + 1 or n == 0 or n > TASKS_PER_CALL then refuse('bad_request', 'settlements') end
  return ids, starts, numbers, taken, costs, sent
end

-- Returns up to when the leases were worked on (nil: until now) if the call came late: the store stood still meanwhile.
local function worked_until(call, sent)
  local late = call.now - sent
  return late > LATE_MS and call.at - late or nil
end

-- Reads the options of the tasks. Marks settlements that cost more because of options.
local function read_options(call, ids, costs)
  local features = {}
  for i, id in ipairs(ids) do
    local lease = leases.lease_of(call, id)
    features[i] = lease and lease.features or HAS_OPTIONS
    if has_options(features[i]) then costs[i] = HEAVY_WORK end
  end
  task_options.read_of(call, ids, features)
end

-- How many settlements a call carries out.
local function fitting(costs, count)
  local left = WORK_PER_CALL
  if not next(costs) then return math.min(count, left) end
  for n = 1, count do
    left = left - (costs[n] or 1)
    if left < 0 then return n - 1 end
  end
  return count
end

-- settle(keys, argv): end or extend leases, each fenced by (id, lease).
--   argv  per lease (at most 500): action, id, lease (its number; with a slash and how often it was taken over
--         behind it that is part of the fence), and for ack: result (may be empty); for nack: delay_ms (may be empty),
--         error, traceback (may be empty, and is kept if the task is dead); for release: delay_ms (may be empty),
--         error; for reject: error, traceback; perhaps last of all: "sent", and when, by the store's clock
--   out   per lease: "ok" | "gone" (settled already by this owner, or long forgotten: not an error)
--         | "stale" (the lease was lost: it was reaped, given to another, or its task ended otherwise)
--         | "cancelled" (extended, but the task was cancelled: its owner shall stop);
--         for take, behind "ok " and "cancelled ", how often the lease was taken over (1 to 255, then 1), and how
--         long it lasts (ms). Fewer than leases where those are too much for one call: the rest is unchanged.
function drains.settle(keys, args)
  local call, outcomes = calls.open(keys, args), {}
  local ids, starts, numbers, taken, costs, sent = read_settlements(args)
  leases.read_runs(call, ids)
  leases.read_bundles(call, numbers)
  if call.queue.tasks_with_options > 0 then read_options(call, ids, costs) end
  local settle, until_at = settlements.settle, sent and worked_until(call, sent)
  for n = 1, fitting(costs, #ids) do
    local first = starts[n]
    outcomes[n] = settle(call, args[first], ids[n], numbers[n], taken[n], args, first, until_at)
  end
  if #call.touched > 0 or call.is_changed then settlements.close(call) end
  return outcomes
end

-- Decides on the follow-up tasks, as `enqueue` does, before the first write. The task that is acknowledged no longer
-- counts in the tenant's bytes, nor holds its dedupe key.
local function decide_links(call, new, args, bytes)
  local id = args[3]
  local kept = task_options.least_of_result(call, id) + batches.bytes_of_result(call, id) + remembered.bytes_of(id)
  call.ending, new.freed_bytes = id, bytes - kept
  for _, outcome in ipairs(enqueue.decide(call, new, args, 6, #args)) do
    if outcome == 'expired' then refuse('bad_request', 'expires_at') end
  end
end

-- settle_linked(keys, argv): acknowledge a task, and store tasks of its tenant that follow it; all of it or nothing.
--   argv  3 id  4 lease  5 result  then per task: as in `enqueue`
--         Refused where one of them would be, or is too late to start.
--   out   as of one settlement of `settle`; where it is not "ok", nothing is stored
function writes.settle_linked(keys, args)
  local call, id, number = calls.open(keys, args), args[3], tonumber(args[4]) or -1
  leases.read_runs(call, {id})
  local lease = leases.lease_of(call, id)
  if not lease or lease.lease ~= number or not leases.is_leased(lease.state) then
    return settlements.settle(call, 'ack', id, number)
  end
  local new = arrivals.new(accounts.at(call, lease.tag).name)
  decide_links(call, new, args, lease.bytes)
  settlements.settle(call, 'ack', id, number, nil, args, 2)
  batch_ends.refill(call)  -- pending tasks of its batch come before the follow-ups
  enqueue.store_decided(call, new)
  close.call(call)
  return 'ok'
end
