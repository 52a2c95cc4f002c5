-- needs: accounts, calls, draws, leases, records, standing, takes, task_options
--
-- How long the next tasks have been ready, for alerts and autoscalers. A tenant that is blocked, or at its limit of
-- running tasks, does not count, since no worker could help it; its wait counts from when it is let in.

-- The tags of up to `wanted` tenants: first those on the wake list, then those in slots, from a random one on.
local function some_tags(call, wanted)
  local tags, line = redis.call('LRANGE', call.prefix .. 'wake', 0, wanted - 1), draws.read_line(call)
  local left = math.min(wanted - #tags, line.tenants)
  local first = left > 0 and left < line.tenants and math.floor(calls.random(call) * line.tenants) or 0
  return draws.tags_from(line, first, left, tags)
end

-- The next tasks of the tenants that have these tags and may be served, one of each, and the tenants.
local function next_ids(call, tags)
  local ids, seen, owners = {}, {}, {}
  accounts.read(call, tags)
  for _, tag in ipairs(tags) do
    local account = accounts.at(call, tag)
    if account and account.slot ~= OUT and account.ready > 0 and not seen[tag] then
      local id = takes.ids(call, account, 1)[1]
      ids[#ids + 1] = id
      if id then owners[id] = account end
    end
    seen[tag] = true  -- it may stand on the wake list, though it has a slot
  end
  return ids, owners
end

-- Since when the next task of a tenant that may be served has been ready; nil if it is not, or that is not known.
local function ready_since(call, account, id, record)
  local run, details = leases.run_of(call, id), accounts.odd_details(call, account)
  if run and leases.is_leased(run.state) then return nil end
  local since = standing.ready_since(call, id, records.read(record), run)
  return since > 0 and math.max(since, details and details.cause ~= 0 and details.let_in_at or 0) or nil
end

-- oldest(keys, argv): the longest time that a tenant's next task has been ready. All tenants that may be served are
-- examined if there are at most `count`; else a random sample of that size.
--   argv  3 count (1..500)
--   out   that time in ms (-1: no such task), how many tasks were looked at
function reads.oldest(keys, args)
  local call, longest = calls.ask(keys, args), -1
  local ids, owners = next_ids(call, some_tags(call, check_whole(args[3], 'count', 1, TASKS_PER_CALL)))
  local found = #ids > 0 and records.of(call, ids) or {}
  leases.read_runs(call, ids)
  task_options.read(call, ids)
  for i, id in ipairs(ids) do
    local since = found[i] and ready_since(call, owners[id], id, found[i])
    if since then longest = math.max(longest, call.now - since, 0) end
  end
  return {longest, #ids}
end
