-- needs: accounts, calls, close, limits, reserve, seats, versions
--
-- What operators change while the queue runs. Every verb is idempotent; changes act on the existing backlog at once.

-- set_weight(keys, argv): give a tenant a weight.
--   argv  3 tenant  4 weight in thousandths (1..10,000,000)  5 if_version (may be left out)
--   out   the weight it had
function drains.set_weight(keys, args)
  local call, weight = calls.open_made(keys, args), check_whole(args[4], 'weight', 1, 10000000)
  check_tenant(args[3])
  local account = accounts.touch_named(call, args[3])
  local queue, previous = call.queue, account.weight
  versions.check(args[5], {previous}, {weight})
  local vtime = accounts.vtime_of(call, account)
  local entitled = seats.entitled_to(call, account)
  local books = accounts.books_of(call, account)
  if account.standing == COMPETES then queue.weight_sum = queue.weight_sum + weight - previous end
  account.weight = weight
  -- The past keeps its old weight, also of leases that run.
  account.base = account.base + vtime - accounts.vtime_of(call, account)
  books.entitled = books.entitled + entitled - seats.entitled_to(call, account)
  close.call(call)
  return previous
end

local function set_paused(keys, args, is_paused)
  local call, name = calls.open_made(keys, args), args[3]
  if name ~= '' then check_tenant(name) end
  local previous = limits.block_named(call, name, BLOCKED_PAUSED, is_paused)
  close.call(call)
  return previous
end

-- pause(keys, argv): hold back a tenant's tasks, or the whole queue's; leases go on. Enqueueing goes on.
--   argv  3 tenant (empty: the queue)
--   out   1 if it was paused already, else 0
function drains.pause(keys, args) return set_paused(keys, args, true) end

-- resume(keys, argv): the opposite of pause; same arguments.
function drains.resume(keys, args) return set_paused(keys, args, false) end

-- setting -> the minimum and the maximum, whole numbers; KEYS.md says what each means.
local SETTINGS = {
  share = {SHARE_TIME, SHARE_COUNT}, lease_ms = {100, 86400000}, max_attempts = {0, 1000},
  retry_base_ms = {1, 86400000}, retry_cap_ms = {1, 604800000},
  dead_keep_ms = {1000, 31536000000}, dead_keep = {0, 10000000}, events_keep = {0, 1000000}, reserve = {0, 90},
  max_tenants = {1, 100000000}, run_timeout_ms = {0, 604800000},
}

-- All settings of a queue as words, with changes, by their names.
local function words_of(queue, changes)
  local names, words = {}, {}
  for name in pairs(SETTINGS) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do words[2 * i - 1], words[2 * i] = name, changes[name] or queue[name] end
  return words
end

function settings.are_default(queue)
  return versions.of(words_of(queue, {})) == versions.of(words_of(calls.new_queue(), {}))
end

-- configure(keys, argv): change settings of the queue, all or none.
--   argv  pairs: setting, value; one may be `if_version`
--   out   all settings until now, in pairs. A change of `share` starts all accounts anew, since it changes the unit of
--         service.
function drains.configure(keys, args)
  local call = calls.open_made(keys, args)
  local queue, changes, given = call.queue, {}, nil
  for i = 3, #args, 2 do
    local range, value = SETTINGS[args[i]], tonumber(args[i + 1])
    if args[i] == 'if_version' then
      given = args[i + 1]
    elseif not range or not value or value < range[1] or value > range[2] or value % 1 ~= 0 then
      refuse('bad_request', args[i])
    else
      changes[args[i]] = value
    end
  end
  local previous = words_of(queue, {})
  versions.check(given, previous, words_of(queue, changes))
  local old_share, old_reserve = queue.share, queue.reserve
  for name, value in pairs(changes) do queue[name] = value end
  if queue.share ~= old_share then
    queue.epoch, queue.epoch_at, queue.clock, queue.level = queue.epoch + 1, call.at, 0, 0
    queue.estimate, queue.estimate_sq, call.mean = 0, 0, 0
    queue.delivered, queue.entitled = 0, 0
  end
  if queue.reserve ~= old_reserve or queue.reserve > 0 and queue.share ~= old_share then reserve.renew(call) end
  close.call(call)
  return previous
end
