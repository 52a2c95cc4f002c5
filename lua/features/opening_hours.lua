-- needs: calls, close, limits, versions
--
-- Opening hours: a tenant, or the whole queue, is served only while it is open by the clock.
--
-- Opening hours are a text that only servers understand (fairq/model/opening_hours.py). Stored with it: whether it is
-- open now, and when that changes. A tenant or queue that is closed is blocked: it keeps its tasks and costs the draw
-- nothing. A tick counts the opening hours that change. A server then reads them, computes when each changes next, and
-- sets them again. It sends the revision that it has read, so only the first of several servers makes the change.

local HOURS_PER_CALL = 100

-- set_opening_hours(keys, argv): say when a tenant, or the queue, is open.
--   argv  3 tenant (empty: the queue)  4 text (empty: always open)  5 is_open (0, 1)  6 changes_at (ms)  7 revision, as
--         read (empty: not checked)  8 if_version (may be left out)
--   out   the previous text (empty: always open), or false if the revision has changed: another call was first
function drains.set_opening_hours(keys, args)
  local call, name, hours = calls.open_made(keys, args), args[3], args[4]
  local is_open, changes_at = check_whole(args[5], 'is_open', 0, 1), check_whole(args[6], 'changes_at', 0, HORIZON_MS)
  if name ~= '' then check_tenant(name) end
  if #hours > 2048 then refuse('bad_request', 'opening_hours') end
  local revision = redis.call('HGET', call.prefix .. 'opening_hours', name) or ''
  if args[7] ~= '' and args[7] ~= revision then return false end
  local previous = revision == '' and '' or HOURS.unpack(revision).text
  versions.check(args[8], {previous}, {hours})
  if hours == '' then
    redis.call('HDEL', call.prefix .. 'opening_hours', name)
    redis.call('ZREM', call.prefix .. 'opening_changes', name)
  else
    local packed = HOURS.pack({is_open = is_open, changes_at = changes_at, text = hours})
    redis.call('HSET', call.prefix .. 'opening_hours', name, packed)
    redis.call('ZADD', call.prefix .. 'opening_changes', changes_at, name)
  end
  limits.block_named(call, name, BLOCKED_CLOSED, hours ~= '' and is_open == 0)
  close.call(call)
  return previous
end

-- opening_hours(keys, argv): the opening hours of the named tenants, or the due changes.
--   argv  names of tenants (an empty name is the queue); without names: up to 100 due changes
--   out   now_ms, then of each: {tenant (empty: the queue), revision}; those without opening hours are left out
function reads.opening_hours(keys, args)
  local call = calls.ask(keys, args)
  local names, out = {unpack(args, 3)}, {call.now}
  if #names == 0 then
    local changes = call.prefix .. 'opening_changes'
    names = redis.call('ZRANGE', changes, '-inf', call.now, 'BYSCORE', 'LIMIT', 0, HOURS_PER_CALL)
  end
  for _, name in ipairs(names) do
    local revision = redis.call('HGET', call.prefix .. 'opening_hours', name)
    if revision then out[#out + 1] = {name, revision} end
  end
  return out
end
