-- needs: accounts, remembered
--
-- Limits: bounds of a tenant other than its share, and the tenants that they keep out of the draw.
--
-- They are stored in the hash `limits`: a tenant's own, and under the empty name the defaults for all tenants.
-- details.limited and queue.limited say whether any are set. If none are, nothing is read, and the built-in defaults
-- apply.
--
-- Rate. One number is the whole token bucket (GCRA, ITU-T I.371): `theoretical_arrival`, the time at which it will be
-- full again. A dispatch moves that on by the rate's interval, and is allowed while it is less than `burst` intervals
-- ahead of now. A tenant that has used its tokens is blocked, and parked until it has some: one, or as many as come in
-- REFILL_MS, so that a fast one does not come and go with every task. A pick that is taken back gives its token back.
--
-- Guarantee. A tenant with fewer leased tasks than its guarantee is served as if it had just woken (rule 3 of
-- pick/README.md), except that a tenant behind the level goes first only one time in eight. Its account goes on, so it
-- draws less of the rest. All tenants share the slots that it does not use. Where a queue has partitions, its servers
-- offer slots first where leases are *owed*: those that tenants below their guarantees could have. A claim of what is
-- owed serves no other tenants.

-- Stored bytes. `stored_bytes` bounds the memory that the store uses for a tenant (accounts.bytes_of): no call exceeds
-- it. New tasks, batches and schedules are refused (tasks/arrivals.lua). Later data cannot be refused. If there is no
-- room for it, a result is dropped (tasks/task_options.lua), an error is cut (tasks/errors.lua), and an event replaces
-- older ones (tasks/feeds.lua). Each says so, in bytes that its task counts anyway.

local REFILL_MS = 20
local EVENT_COST = 700  -- bytes that an event takes in the store, at most

limits.names = {'max_running', 'guaranteed', 'rate', 'burst', 'queued', 'stored_bytes', 'delayed', 'dead'}
-- The built-in limits of each tenant in each queue (0: none).
limits.defaults = {
  max_running = 0, guaranteed = 0, rate = 0, burst = 0, queued = 10000000, stored_bytes = 2 ^ 30, delayed = 10000000,
  dead = 0,
}

-- The limits set for a tenant; or (empty name) those for all tenants, defaults included.
function limits.set_for(call, name)
  local packed = redis.call('HGET', call.prefix .. 'limits', name)
  local set = packed and cmsgpack.unpack(packed) or {}
  return name == '' and with_defaults(set, limits.defaults) or set
end

-- True if a tenant has limits of its own.
local function has_own(call, account)
  local details = accounts.odd_details(call, account)
  return details and details.limited == 1
end

-- The limits in force for a tenant; 0: no limit.
function limits.of(call, account)
  local is_own = has_own(call, account)
  if call.queue.limited == 0 and not is_own then return limits.defaults end
  local known = table_in(call, 'limits')
  local for_all = known[''] or limits.set_for(call, '')
  known[''] = for_all
  if not is_own then return for_all end
  known[account.name] = known[account.name] or with_defaults(limits.set_for(call, account.name), for_all)
  return known[account.name]
end

-- The bytes that a tenant keeps, without its feed.
local function beside_feed(call, account)
  local books = accounts.books_of(call, account)
  return books.bytes + remembered.bytes(call, books.more)
end

-- The bytes that a tenant keeps, with its feed.
function limits.kept(call, account)
  return beside_feed(call, account) + EVENT_COST * accounts.books_of(call, account).events
end

-- How many bytes more a tenant may keep; below 0 where its limit was lowered.
function limits.room(call, account)
  local most = limits.of(call, account).stored_bytes
  return most == 0 and math.huge or most - limits.kept(call, account) - call.incoming_bytes
end

-- How many events a tenant may keep: as many as its other bytes leave room for, in half of its limit at most.
function limits.events(call, account)
  local most = limits.of(call, account).stored_bytes
  if most == 0 then return math.huge end
  local left = most - beside_feed(call, account) - call.incoming_bytes
  return math.max(0, math.floor(math.min(most / 2, left) / EVENT_COST))
end

-- The tenant's bytes that new ones have to leave room for. A feed that exceeds its half, after the limit was lowered,
-- shrinks by itself: it does not keep out data that fits into the other half.
function limits.kept_by(call, account, most)
  local kept, feed = beside_feed(call, account), EVENT_COST * call.books[account].events
  return kept + (most > 0 and feed > most / 2 and most / 2 or feed)
end

-- True if neither details nor limits matter to the tenant.
function limits.is_plain(call, account)
  return call.queue.limited == 0 and account.is_odd == 0
end

-- True if one more task of the tenant, which has ready ones, may be leased.
function limits.is_eligible(call, account)
  if limits.is_plain(call, account) then return true end
  local details = accounts.odd_details(call, account)
  if details and details.blocked ~= 0 then return false end
  local max_running = limits.of(call, account).max_running
  return max_running == 0 or account.leased < max_running
end

function limits.is_guaranteed(call, account)
  return has_own(call, account) and account.leased < limits.of(call, account).guaranteed
end

-- How many more leases the tenant is owed within its guarantee.
function limits.owed(call, account)
  if not limits.is_guaranteed(call, account) or not limits.is_eligible(call, account) then return 0 end
  return math.min(account.ready, limits.of(call, account).guaranteed - account.leased)
end

-- True if the tenant has a guarantee, and no more leases than that.
function limits.is_within_guarantee(call, account)
  local guaranteed = has_own(call, account) and limits.of(call, account).guaranteed or 0
  return account.leased <= guaranteed and guaranteed > 0
end

-- The tenant's standing in the fair pick (account.standing). While its leases are within its guarantee, it does not
-- compete with the others.
function limits.standing_of(call, account)
  if account.ready == 0 then return 0 end
  if limits.is_plain(call, account) then return COMPETES end
  if not limits.is_eligible(call, account) then return 0 end
  return limits.is_within_guarantee(call, account) and ELIGIBLE or COMPETES
end

-- Sets or clears a reason not to serve a tenant or the queue.
function limits.block(thing, reason, is_blocked)
  thing.blocked = is_blocked and bit.bor(thing.blocked, reason) or bit.band(thing.blocked, bit.bnot(reason))
end

-- The same by name (empty: the queue); also records whether tasks can be served now. Returns the reason's previous bit.
function limits.block_named(call, name, reason, is_blocked)
  local target, ready = call.queue, call.queue.servable
  if name ~= '' then
    local account = accounts.touch_named(call, name)
    target, ready = accounts.details_of(call, account), account.ready
  end
  local previous = bit.band(target.blocked, reason)
  limits.block(target, reason, is_blocked)
  call.readied = target.blocked == 0 and ready > 0
  return previous
end

-- Records why a tenant that has ready tasks is out of the draw, and since when. The cause is a value of `blocked`, or
-- CAUSE_MAX_RUNNING. The note stays after the tenant is let in, until it has nothing ready.
function limits.keep_out(call, account)
  if limits.is_plain(call, account) then return end
  local details = accounts.details_of(call, account)
  local cause = account.ready > 0 and (details.blocked ~= 0 and details.blocked or CAUSE_MAX_RUNNING) or 0
  if cause ~= 0 and (account.slot ~= OUT or details.cause == 0) then details.out_at = call.now end
  details.cause, details.let_in_at = cause, 0
end

-- Adds to the claim's reply, once, that a tenant was blocked: why, and from when until when.
function limits.note_kept_out(call, account)
  local details = accounts.odd_details(call, account)
  if not details or details.cause == 0 then return end
  local kept_out = table_in(call, 'kept_out')
  if kept_out[account.name] then return end
  kept_out[account.name] = true
  for _, value in ipairs({account.name, details.cause, details.out_at, details.let_in_at}) do
    table.insert(kept_out, value)
  end
end

-- Blocks a tenant that has no token, or lets it in again.
function limits.meter(call, account)
  local holds, details = limits.of(call, account), accounts.details_of(call, account)
  local rate, burst = holds.rate, holds.burst
  if rate == 0 then return limits.block(details, BLOCKED_RATE, false) end
  local interval = 1000 / rate
  if burst == 0 then burst = math.max(1, math.floor(rate)) end  -- what comes in a second
  -- The rate may have changed.
  details.theoretical_arrival = math.min(details.theoretical_arrival, call.now + burst * interval)
  local next_at = details.theoretical_arrival - (burst - 1) * interval
  if next_at > call.now then
    local refill = math.min(burst, math.max(1, math.floor(REFILL_MS / interval)))
    local unpark_at = math.ceil(next_at + (refill - 1) * interval)
    local parked = table_in(call, 'parked')
    call.unpark_at = math.min(call.unpark_at or unpark_at, unpark_at)
    table.insert(parked, unpark_at)
    table.insert(parked, account.name)
  end
  limits.block(details, BLOCKED_RATE, next_at > call.now)
end

-- Goes on with a sweep, or begins it: looks at the next tenants, some `count`. Lets in those that a limit for all kept
-- out, counts the tokens of rate-limited ones, notes those without running tasks (pick/reserve.lua), and watches the
-- first delayed task of each.
function limits.sweep(call, count)
  local queue, at, tags = call.queue, call.prefix .. 'sweep', {}
  if queue.sweeping == NO_SWEEP then return end
  local cursor = queue.sweeping == SWEEPING and redis.call('GET', at) or '0'
  local page = redis.call('HSCAN', call.prefix .. 'accounts', cursor, 'COUNT', count)
  for i = 1, #page[2], 2 do
    tags[#tags + 1] = page[2][i]
    accounts.unpack(call, page[2][i], page[2][i + 1])
  end
  table.sort(tags)
  for _, tag in ipairs(tags) do
    local account = accounts.at(call, tag)
    local is_idle = queue.reserve > 0 and account.slot > 0 and account.leased == 0
    if account.ready > 0 and account.slot == OUT or is_idle then accounts.touch(call, account) end
    if account.is_odd == 1 and bit.band(accounts.details_of(call, account).blocked, BLOCKED_RATE) ~= 0 then
      redis.call('ZREM', call.prefix .. 'parked', account.name)
      limits.meter(call, accounts.touch(call, account))
    end
    local details = accounts.odd_details(call, account)
    if details and details.cause ~= 0 and details.let_in_at > call.now then  -- the queue's time has gone back since
      accounts.touch(call, account)
      details.let_in_at = call.now
    end
    local first = redis.call('ZRANGE', call.prefix .. 'delayed:' .. account.name, 0, 0, 'WITHSCORES')[2]
    if first then redis.call('ZADD', call.prefix .. 'due', 'LT', math.floor(first), account.name) end
  end
  queue.sweeping, call.is_changed = page[1] == '0' and NO_SWEEP or SWEEPING, true
  if queue.sweeping == SWEEPING then redis.call('SET', at, page[1]) else redis.call('DEL', at) end
end

-- Takes a token for a dispatch, or (count = -1) gives it back.
function limits.spend(call, account, count)
  if limits.is_plain(call, account) then return end
  local rate, details = limits.of(call, account).rate, accounts.details_of(call, account)
  if rate == 0 then return end
  call.costly = call.costly + count
  details.theoretical_arrival = math.max(details.theoretical_arrival, call.now) + count * 1000 / rate
  limits.meter(call, account)
end

-- Lets in tenants that have tokens again.
function limits.unpark(call, limit)
  local names = redis.call('ZRANGE', call.prefix .. 'parked', '-inf', call.now, 'BYSCORE', 'LIMIT', 0, limit)
  redis.call('ZREM', call.prefix .. 'parked', unpack(names))
  for _, name in ipairs(names) do limits.meter(call, accounts.touch_named(call, name)) end
end
