-- The verbs `settle` and `settle_linked` (40_settle.lua): many settlements in one call.
do

local ARGUMENTS = {ack = 3, ack_with_result = 4, nack = 6, postpone = 5, reject = 5, release = 3, reap = 3, extend = 3,
  take = 3, ack_linked = 5}  -- of each action
-- These, and all of tasks that ask for more, are work:
local HEAVY = {ack_with_result = true, ack_linked = true, nack = true, postpone = true, reject = true}
local LIGHT_WORK, HEAVY_WORK, WORK_PER_CALL = 1, 8, 300    -- a call leaves the rest to the next

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
    local delay = args[starts[n] + 3]
    if action == 'nack' and delay ~= '' or action == 'postpone' then
      delay = tonumber(delay)
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

-- Reads the links of acknowledgements, in place: before the first write. Only `settle_linked` takes them.
local function read_links(call, args, starts, may_link)
  for _, first in ipairs(starts) do
    if args[first] == 'ack_linked' then
      if not may_link then refuse('bad_request', 'action') end
      args[first + 4] = links.read(call, args[first + 4])
    end
  end
end

-- settle(keys, argv): end or extend leases, each fenced by (id, lease).
--   keys  1 prefix
--   argv  1 now  2 random_values  then per lease (at most 500): action, id, lease (its number; with a slash and
--         how often it was taken over behind it that is part of the fence), and
--         for ack_with_result: result; for nack: delay_ms (may be empty), error, traceback (may be empty, and is
--         kept if the task is dead); for postpone: delay_ms, error; for reject: error, traceback
--   out   per lease: "ok" | "gone" (settled already by this owner, or long forgotten: not an error)
--         | "stale" (the lease was lost: another one owns or owned the task)
--         | "cancelled" (extended, but the task was cancelled: its owner shall stop);
--         for take, behind "ok " and "cancelled ", how often the lease was taken over (1 to 255, then 1), and for
--         how long it lasts (ms). Fewer than leases where those are too much for one call: nothing has become of the
--         rest.
--   flags allow-oom
function verbs.settle(keys, args, may_link)
  local call, outcomes, changed = calls.open(keys, args), {}, false
  local ids, starts, numbers, taken = read_settlements(args)
  read_links(call, args, starts, may_link)
  leases.read_runs(call, ids)
  local features, work = read_more(call, ids, numbers), 0
  for n = 1, #ids do
    local first = starts[n]
    local is_heavy = HEAVY[args[first]] or features[n] and features[n] % 2 == HAS_OPTIONS
    work = work + (is_heavy and HEAVY_WORK or LIGHT_WORK)
    if args[first] == 'ack_linked' then work = work + HEAVY_WORK * #args[first + 4] end
    if work > WORK_PER_CALL or calls.is_full(call) then break end
    outcomes[n] = is_taken(call, ids[n], numbers[n], taken[n]) and 'stale'
      or settlements.settle(call, args[first], ids[n], numbers[n], call.now, args[first + 3], args[first + 4],
        args[first + 5])
    changed = changed or outcomes[n] ~= 'gone' and outcomes[n] ~= 'stale'
  end
  if changed then batches.finish(call) end
  leases.write(call)
  if changed then calls.close(call) end
  return outcomes
end

-- settle_linked(keys, argv): as `settle`; it also takes acknowledgements with links (39_links.lua).
--   keys  1 prefix
--   argv  1 now  2 random_values  then as of `settle` (at most 500); for ack_linked: result, links (LINK and its
--         payload, one after the other; 1 to 16)
--   out   as of `settle`
--   flags none: refused as a whole when the store is full
function verbs.settle_linked(keys, args)
  return verbs.settle(keys, args, true)
end

end
