-- needs: accounts, calls, close, history, limits, reserve, seats, versions
--
-- Changes by operators while the queue runs. Every verb is idempotent; changes act on the existing backlog at once.

-- set_weight(keys, argv): give a tenant a weight.
--   argv  3 tenant  4 weight in thousandths (1..10,000,000)  5 if_version (may be left out)
--   out   the previous weight
function drains.set_weight(keys, args)
  local call, weight = calls.open_made(keys, args), check_whole(args[4], 'weight', 1, 10000000)
  check_tenant(args[3])
  local account = accounts.touch_named(call, args[3])
  local queue, previous = call.queue, account.weight
  versions.check(args[5], {previous}, {weight})
  local vtime, entitled = accounts.vtime_of(call, account), seats.entitled_to(call, account)
  local books = accounts.books_of(call, account)
  if account.standing == COMPETES then queue.weight_sum = queue.weight_sum + weight - previous end
  account.weight = weight
  -- The past keeps its old weight, also of leases that run.
  account.base = account.base + vtime - accounts.vtime_of(call, account)
  books.entitled = books.entitled + entitled - seats.entitled_to(call, account)
  close.call(call)
  return previous
end

-- set_paused(keys, argv): pause or resume a tenant or the whole queue; leases and enqueueing go on.
--   argv  3 tenant (empty: the queue)  4 paused (0, 1)
--   out   whether it was paused: 0 or 1
function drains.set_paused(keys, args)
  local call, name, is_paused = calls.open_made(keys, args), args[3], check_whole(args[4], 'paused', 0, 1) == 1
  if name ~= '' then check_tenant(name) end
  local previous = limits.block_named(call, name, BLOCKED_PAUSED, is_paused)
  close.call(call)
  return previous
end

-- begin_turn(keys, argv): let a change of all places of a queue begin, in the first of them, unless one is under way.
--   argv  3 the change  4 ms after which its turn is over in any case
--   out   whether it may begin: 0 or 1
function drains.begin_turn(keys, args)
  local for_ms = check_whole(args[4], 'for_ms', 1, 60000)
  return redis.call('SET', keys[1] .. ':changing', args[3], 'NX', 'PX', for_ms) and 1 or 0
end

-- end_turn(keys, argv): end the turn of a change. If it was over before, another may have its turn, which goes on.
--   argv  3 the change
--   out   "ok"
function drains.end_turn(keys, args)
  local key = keys[1] .. ':changing'
  if redis.call('GET', key) == args[3] then redis.call('UNLINK', key) end
  return 'ok'
end

-- All settings of a queue by name, with the changes of this call.
local function words_of(queue, changes)
  local names, words = {}, {}
  for name in pairs(DEFAULTS) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do words[2 * i - 1], words[2 * i] = name, changes[name] or queue[name] end
  return words
end

-- configure(keys, argv): change settings of the queue, all or none.
--   argv  pairs: setting, value; one may be `if_version`
--   out   all previous settings, in pairs. A change of `share` starts all accounts anew, since it changes the unit of
--         service.
function drains.configure(keys, args)
  local call = calls.open_made(keys, args)
  local queue, changes, given = call.queue, {}, nil
  for i = 3, #args, 2 do
    local bounds = BOUNDS[args[i]]
    if args[i] == 'if_version' then
      given = args[i + 1]
    elseif not bounds then
      refuse('bad_request', args[i])
    else
      changes[args[i]] = check_whole(args[i + 1], args[i], bounds[1], bounds[2])
    end
  end
  local previous = words_of(queue, {})
  versions.check(given, previous, words_of(queue, changes))
  local old_share, old_reserve = queue.share, queue.reserve
  local own = calls.own_settings(queue)
  for name, value in pairs(changes) do
    queue[name], own[name] = value, value
  end
  own = without_defaults(own, DEFAULTS)
  queue.settings = next(own) and cmsgpack.pack(own) or ''
  if queue.share ~= old_share then
    queue.epoch, queue.epoch_at, queue.clock, queue.level = queue.epoch + 1, call.at, 0, 0
    queue.estimate, queue.estimate_sq, call.mean = 0, 0, 0
    queue.delivered, queue.entitled = 0, 0
    history.begin_anew(call)
  end
  if queue.reserve ~= old_reserve or queue.reserve > 0 and queue.share ~= old_share then reserve.renew(call) end
  close.call(call)
  return previous
end
