-- needs: accounts, calls, group_order, leases, priorities, records
--
-- Finds the waiting tasks of one tenant, page by page, so that `cancel` can cancel them by id (verbs/waiting.lua).
--
-- A walk goes over the tenant's own places only, so it costs the others nothing: delayed tasks, those that wait for a
-- batch slot, then ready ones, and those of groups. All places are sorted sets, scanned with the store's cursors: a
-- scan returns every member that stays there throughout. Tasks move from place to place in that order. So the walk
-- finds every task that waits throughout; a task that is leased meanwhile, and comes back, may be missed. Tasks
-- enqueued after the walk began are passed over, so it ends.

local LOOKED = 250   -- tasks that one call looks at, more or less
local STEPS = 10     -- parts of places that it looks at
local NAMES = 5      -- batches or groups that are read at once, more or less
local DELAYED, PENDING, READY, GROUPS = 0, 1, 2, 3  -- stages; the last one for each priority that has groups

local function go_to(walk, stage)
  walk.stage, walk.outer, walk.name, walk.inner = stage, '0', '', '0'
end

-- The next batches or groups with tasks of the tenant, in an order that is the same for every call, and the cursor
-- behind them. Delayed and ready tasks are in sets without a name.
local function names_of(walk, stage)
  if not stage.command then return {''}, '0' end
  local names = {}
  local next_cursor, page = scan(stage.command, stage.at, walk.outer, NAMES)
  for i = 1, #page, 2 do
    local name = stage.name_of(page[i], page[i + 1])
    if name and not precedes(name, walk.name) then names[#names + 1] = name end
  end
  table.sort(names, precedes)
  return names, next_cursor
end

-- Some ids of the sorted sets of a stage; returns whether they were the last ones.
local function scan_sets(walk, stage, ids)
  local names, next_outer = names_of(walk, stage)
  for _, name in ipairs(names) do
    local cursor, page = scan('ZSCAN', stage.set_of(name), name == walk.name and walk.inner or '0', LOOKED)
    for at = 1, #page, 2 do ids[#ids + 1] = page[at] end
    if cursor ~= '0' then
      walk.name, walk.inner = name, cursor
      return false
    end
  end
  walk.outer, walk.name, walk.inner = next_outer, '', '0'
  return next_outer == '0'
end

-- The places where tasks of the tenant wait, in the order of the walk: sets, and where their names are.
local function stages_of(call, account)
  local details = accounts.details_of(call, account)
  local stages = {{number = DELAYED, set_of = function() return call.prefix .. 'delayed:' .. account.name end}}
  if details.pending > 0 then
    stages[2] = {number = PENDING, command = 'HSCAN', at = call.prefix .. 'batches',
      name_of = function(id, packed) return BATCH.unpack(packed).tenant == account.name and id end,
      set_of = function(id) return call.prefix .. 'pending:' .. id end}
  end
  stages[#stages + 1] = {number = READY, set_of = function() return priorities.ready_key(call, account.name) end}
  for _, priority in ipairs(redis.call('ZRANGE', call.prefix .. 'priorities:' .. account.name, 0, -1)) do
    stages[#stages + 1] = {number = GROUPS + priority, command = 'ZSCAN', at = group_order.key(call, account, priority),
      name_of = function(member) return #member > #group_order.LOOSE and member:sub(#group_order.LOOSE + 1) end,
      set_of = function(group) return group_order.group_key(call, account, priority, group) end}
  end
  return stages
end

local function read_walk(call, args)
  local older = check_whole(args[5], 'older_than_ms', 0, HORIZON_MS)
  local walk = {until_ms = math.max(0, call.now - older), error = args[6], has_age = older > 0}
  go_to(walk, DELAYED)
  if args[4] == '' then return walk end
  local until_ms, stage
  until_ms, stage, walk.outer, walk.inner, walk.name = args[4]:match('^(%d+) (%d+) (%d+) (%d+) (.*)$')
  if not until_ms then refuse('bad_request', 'cursor') end
  walk.until_ms, walk.stage = tonumber(until_ms), tonumber(stage)
  return walk
end

-- Looks at the next places; returns the ids that stand there. After the last one walk.stage is false.
local function look(call, walk, account)
  local ids, steps = {}, 0
  for _, stage in ipairs(stages_of(call, account)) do
    if stage.number > walk.stage then go_to(walk, stage.number) end
    while stage.number == walk.stage do
      if steps == STEPS or #ids >= LOOKED then return ids end
      if scan_sets(walk, stage, ids) then go_to(walk, stage.number + 0.5) end  -- the next one is entered above
      steps = steps + 1
    end
  end
  walk.stage = false
  return ids
end

-- The ids of waiting tasks of the tenant that match.
local function matching(call, walk, account, ids)
  local found, out, seen = records.of(call, ids), {}, {}
  local deaths = redis.call('HMGET', call.prefix .. 'dead', unpack(ids))
  leases.read_runs(call, ids)
  for i, id in ipairs(ids) do
    local run = leases.run_of(call, id)
    local is_waiting = records.is_task(found[i]) and not deaths[i] and not (run and leases.is_leased(run.state))
    if is_waiting and not seen[id] and (walk.error == '' or run and run.error:find(walk.error, 1, true)) then
      local header = records.read(found[i])
      local is_ahead = header.enqueued_at > call.now and not walk.has_age  -- the queue's time has gone back since
      if header.tenant == account.name and (header.enqueued_at <= walk.until_ms or is_ahead) then out[#out + 1] = id end
    end
    seen[id] = true
  end
  return out
end

-- waiting_tasks(keys, argv): a page of a tenant's waiting tasks that match.
--   argv  3 tenant  4 cursor (empty to begin)  5 older_than_ms (0: any; with a cursor, as before)  6 text that the last
--         error contains (empty: any)
--   out   cursor (empty at the end), how many tasks it looked at, how many wait, then ids. Tasks enqueued after the
--         walk began are left out; a task that changes its place meanwhile may come twice.
function reads.waiting_tasks(keys, args)
  local call = calls.ask(keys, args)
  local account, walk = accounts.named(call, args[3]), read_walk(call, args)
  local ids, details = look(call, walk, account), accounts.details_of(call, account)
  local cursor = walk.stage and table.concat({text(walk.until_ms), text(walk.stage), walk.outer, walk.inner,
    walk.name}, ' ') or ''
  local found = #ids > 0 and matching(call, walk, account, ids) or ids
  return {cursor, #ids, account.ready + details.pending + details.delayed, unpack(found)}
end
