-- needs: accounts, group_order, priorities
--
-- Taking the next ids of a tenant. A claim reads all that it needs before it writes anything: ids are only counted as
-- taken, also for what the same call reads next, until `takes.write`.

-- Takes up to `wanted` ids of a tenant's tasks without a group; `before`: only those more urgent than this priority.
function takes.loose(call, tenant, wanted, before)
  local at, all, ids = priorities.ready_key(call, tenant), call.taken, nil
  local taken = all[at] or 0
  if before then
    local last = text(priorities.score(before - 0.5, 0))
    ids = redis.call('ZRANGE', at, '-inf', last, 'BYSCORE', 'LIMIT', taken, wanted)
  else
    ids = redis.call('ZRANGE', at, taken, taken + wanted - 1)
  end
  all[at] = taken + #ids
  return ids
end

-- Takes ids of one tenant by priority, and inside a priority by turns.
local function take_grouped(call, account, wanted)
  local ids = {}
  local function add(more)
    for _, id in ipairs(more) do ids[#ids + 1] = id end
  end
  for _, priority in ipairs(redis.call('ZRANGE', call.prefix .. 'priorities:' .. account.name, 0, -1)) do
    add(takes.loose(call, account.name, wanted - #ids, priority))
    if #ids < wanted then group_order.take(call, account, priority, wanted, ids) end
    if #ids == wanted then return ids end
  end
  add(takes.loose(call, account.name, wanted - #ids))
  return ids
end

-- Up to `wanted` ids of one tenant, the next ones first.
function takes.ids(call, account, wanted)
  if accounts.has_groups(call, account) then return take_grouped(call, account, wanted) end
  return takes.loose(call, account.name, wanted)
end

-- Removes the taken ids from the store.
function takes.write(call)
  if call.lines then group_order.write(call) end
  for at, count in pairs(call.taken) do
    if count > 0 then redis.call('ZREMRANGEBYRANK', at, 0, count - 1) end
  end
  call.taken = {}
end
