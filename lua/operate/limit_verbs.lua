-- needs: accounts, calls, close, limits, versions
--
-- The verbs on limits (pick/limits.lua).

-- Reads the pairs of limit and value from `first` on, and checks them all.
local function read_limits(args, first)
  local given, name = {}, args[3]
  if #args < first + 1 or (#args - first) % 2 == 0 then refuse('bad_request', 'limits') end
  for i = first, #args, 2 do
    local limit, value = args[i], tonumber(args[i + 1])
    local is_known = limits.defaults[limit] and not given[limit] and value and value >= UNSET and value <= HORIZON_MS
    local may_have_part = limit == 'rate' and is_known and value >= 0
    if not is_known or not may_have_part and value % 1 ~= 0 or limit == 'guaranteed' and name == '' then
      refuse('bad_request', limit)
    end
    if name == '' and value < 0 then value = limits.defaults[limit] end
    given[limit] = value
  end
  return given
end

local function save_limits(call, name, values)
  local own = without_defaults(values, name == '' and limits.defaults or {})
  local at = call.prefix .. 'limits'
  if next(own) then redis.call('HSET', at, name, cmsgpack.pack(own)) else redis.call('HDEL', at, name) end
  return next(own) and 1 or 0
end

local function flat(values)
  local out = {}
  for _, limit in ipairs(limits.names) do
    out[#out + 1], out[#out + 2] = limit, text(values[limit] or UNSET)
  end
  return out
end

-- set_limits(keys, argv): set limits of a tenant, or the defaults for all tenants; all or none.
--   argv  3 tenant (empty: for all)  then pairs: limit, value (0: none; -1: the one for all, or its default); the first
--         pair may be `if_version`, a version
--   out   all previous limits, in pairs
function drains.set_limits(keys, args)
  local call, name = calls.open_made(keys, args), args[3]
  if name ~= '' then check_tenant(name) end
  local has_version = args[4] == 'if_version'
  local given = read_limits(args, has_version and 6 or 4)
  local previous, after = limits.set_for(call, name), limits.set_for(call, name)
  for limit, value in pairs(given) do after[limit] = value ~= UNSET and value or nil end
  if has_version then versions.check(args[5], flat(previous), flat(after)) end
  if name == '' then
    call.queue.limited = save_limits(call, name, after)
    -- Ticks count tokens anew, and let in tenants that have room now.
    call.queue.sweeping = math.max(call.queue.sweeping, SWEEP_WANTED)
  else
    local account = accounts.touch_named(call, name)
    accounts.details_of(call, account).limited, call.limits = save_limits(call, name, after), false
    limits.meter(call, account)
  end
  close.call(call)
  return flat(previous)
end

-- limits(keys, argv): the limits set for a tenant, or for all.
--   argv  3 tenant (empty: for all)
--   out   in pairs: limit, value (0: none; -1: the one for all)
function reads.limits(keys, args)
  return flat(limits.set_for({prefix = keys[1] .. ':'}, args[3]))
end
