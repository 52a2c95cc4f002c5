-- The audit: the changes by operators and tenants: who did what, when, from where. Its prefix is not a queue's but
-- `fq:{audit}`, or `fq:{audit-of-tenants}`. The ids of its stream entries are times of the store.
--
-- An operator's change is in `begun` before it is carried out, and moves to `changes` when it has ended. So it leaves a
-- trace even if its server dies. Each tenant has a part of the tenants' `changes`, so none pushes out the others'.
-- These are functions, not plain commands, so that a full store accepts them.

local MAX_BEGUN, KEPT = 1000, 10000
local PART = 200  -- changes of each tenant, among the KEPT of the tenants' audit
local TENANT = 8  -- where an entry has its tenant: after token, verb and queue

local function forget(call, tenant, id)
  redis.call('XDEL', call.prefix .. 'changes', id)
  redis.call('ZREM', call.prefix .. 'of_tenants', tenant .. '/' .. id)
end

-- The oldest of a tenant's entries, which are sorted by bytes: of one ms the tenth comes before the second.
local function oldest(entries)
  local first, ms = entries[1], entries[1]:match('^.*%-')
  for i = 2, #entries do
    if entries[i]:sub(1, #ms) ~= ms then break end
    if #entries[i] < #first then first = entries[i] end
  end
  return first
end

-- Forgets the oldest entry of a tenant that has its part, or of all if there is no room for more.
local function make_room(call, tenant)
  local entries = redis.call('ZRANGE', call.prefix .. 'of_tenants', '[' .. tenant .. '/', '(' .. tenant .. '0', 'BYLEX')
  if #entries >= PART then
    forget(call, tenant, oldest(entries):sub(#tenant + 2))
  elseif redis.call('XLEN', call.prefix .. 'changes') >= KEPT then
    local entry = redis.call('XRANGE', call.prefix .. 'changes', '-', '+', 'COUNT', 1)[1]
    forget(call, entry[2][TENANT], entry[1])
  end
end

-- begin_change(keys, argv): note a change that is about to be carried out.
--   argv  a field, its value, ...: token, verb, queue, tenant and further fields
--   out   its id
function drains.begin_change(keys, args)
  return redis.call('XADD', keys[1] .. ':begun', 'MAXLEN', MAX_BEGUN, '*', unpack(args, 3))
end

-- end_change(keys, argv): keep a change that has ended.
--   argv  3 its id as one that has begun (empty: a tenant's, which is only kept)  then as for begin_change
--   out   "ok"
function drains.end_change(keys, args)
  local call, id, tenant = {prefix = keys[1] .. ':'}, args[3], args[3 + TENANT]
  if id == '' then
    make_room(call, tenant)
    local entry = redis.call('XADD', call.prefix .. 'changes', '*', unpack(args, 4))
    redis.call('ZADD', call.prefix .. 'of_tenants', 0, tenant .. '/' .. entry)
  else
    redis.call('XDEL', call.prefix .. 'begun', id)
    redis.call('XADD', call.prefix .. 'changes', 'MAXLEN', '~', KEPT, '*', unpack(args, 4))
  end
  return 'ok'
end
