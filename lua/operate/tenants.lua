-- needs: accounts, calls
--
-- The end of a tenant: its account is deleted when it has nothing left.
--
-- An operator may drop it at once, with its settings. Without that, servers look through all accounts now and then
-- (`forget_tenants`), and drop those that have had nothing for long enough, and no settings of their own. A tenant that
-- comes back is a new one: it begins at the level, as any that has been idle.

local ACCOUNTS_PER_CALL = 200  -- that one call looks at, at most
local SHORT = 1000  -- entries of the wake list, among which many tenants of one call may be looked for

-- The contents of a tenant: {name, how many, ...}; kept_bytes: of all these, and of batches, results, dedupe keys.
local function holdings(call, account)
  local details = accounts.details_of(call, account)
  local schedules = redis.call('HLEN', call.prefix .. 'schedules:' .. account.name)
  return {'ready', account.ready, 'pending', details.pending, 'delayed', details.delayed, 'leased', account.leased,
    'dead', details.dead, 'schedules', schedules, 'kept_bytes', accounts.books_of(call, account).bytes}
end

local function has_nothing(held)
  for i = 2, #held, 2 do
    if held[i] > 0 then return false end
  end
  return true
end

-- Deletes tenants that have nothing: their accounts and their settings.
local function drop(call, found)
  local tags, names = {}, {}
  for i, account in ipairs(found) do
    local tag = account.tag
    if account.is_on_wake_list == 1 then redis.call('LREM', call.prefix .. 'wake', 0, tag) end
    tags[i], names[i] = tag, account.name
  end
  write('HDEL', call.prefix .. 'accounts', tags)
  for _, hash in ipairs({'tenants', 'limits', 'opening_hours'}) do write('HDEL', call.prefix .. hash, names) end
  write('ZREM', call.prefix .. 'idle', tags)
  for _, set in ipairs({'opening_changes', 'parked', 'due'}) do write('ZREM', call.prefix .. set, names) end
end

-- drop_tenant(keys, argv): delete a tenant that has nothing, with its account, settings and feed.
--   argv  3 tenant
--   out   "ok" | "gone" (there is no such tenant) | "not_empty" (nothing was changed), then when the last result or
--         dedupe key of the queue will be gone (ms; 0: it had none), and the tenant's contents: name, how many, ...
function drains.drop_tenant(keys, args)
  local call, name = calls.open(keys, args), args[3]
  local packed = redis.call('HGET', call.prefix .. 'tenants', name)
  if not packed then return {'gone'} end
  local account = accounts.named(call, name, packed)
  local held = holdings(call, account)
  if not has_nothing(held) then return {'not_empty', call.queue.kept_until, unpack(held)} end
  drop(call, {account})
  redis.call('UNLINK', call.prefix .. 'events:' .. name)
  return {'ok'}
end

-- True if a tenant has had nothing for that time, and equals a new one.
local function is_like_new(call, account, for_ms)
  local books = accounts.books_of(call, account)
  if call.queue.origin + books.seen_at + for_ms > call.sure then return false end
  if account.ready + account.leased > 0 or account.weight ~= accounts.DEFAULT_WEIGHT then return false end
  if account.is_on_wake_list == 1 and redis.call('LLEN', call.prefix .. 'wake') > SHORT then return false end
  if books.bytes > 0 or not has_nothing(holdings(call, account)) then return false end
  local details, name = accounts.details_of(call, account), account.name
  return details.limited == 0 and details.blocked == 0
    and redis.call('HEXISTS', call.prefix .. 'opening_hours', name) == 0
    and redis.call('EXISTS', call.prefix .. 'events:' .. name) == 0
end

-- forget_tenants(keys, argv): look at a page of the accounts, and drop tenants that have had nothing for a time.
--   argv  3 cursor ("0" to begin)  4 count (1..200)  5 for how long, ms  6 the server's own time (may be empty): see
--         `tick`
--   out   next cursor ("0" at the end), how many tenants were dropped
function drains.forget_tenants(keys, args)
  local call, idle = calls.open(keys, args), {}
  local count = check_whole(args[4], 'count', 1, ACCOUNTS_PER_CALL)
  local for_ms = check_whole(args[5], 'for_ms', 0, HORIZON_MS)
  calls.confirm(call, args[6])
  local cursor, page = scan('HSCAN', call.prefix .. 'accounts', args[3], count)
  for i = 1, #page, 2 do
    local account = accounts.unpack(call, page[i], page[i + 1])
    if is_like_new(call, account, for_ms) then idle[#idle + 1] = account end
  end
  drop(call, idle)
  return {cursor, #idle}
end
