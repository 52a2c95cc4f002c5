-- needs: calls, records
--
-- Reading dead letters: page by page, or one of them whole.
--
-- Letters stand in the order (died_at, id). A walk goes from page to page by a cursor, `<until>:<died_at>:<id>`: the
-- last letter looked at, and the time up to which the walk goes, which is when it began (less older_than_ms). So it
-- finds every letter that stays exactly once, even if others are replayed or purged meanwhile. Letters that are
-- replayed along the way and die again are beyond its end.

-- How many letters of the set are not after (died_at, id), whether or not that one is still there.
local function rank_after(deaths, died_at, id)
  local low = redis.call('ZCOUNT', deaths, '-inf', '(' .. died_at)
  local high = redis.call('ZCOUNT', deaths, '-inf', died_at)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if precedes(id, redis.call('ZRANGE', deaths, middle, middle)[1]) then high = middle else low = middle + 1 end
  end
  return low
end

-- The arguments of a call of `dead`. From rank `first` on, `left` letters are still to be looked at.
local function read_walk(call, args)
  local walk = {deaths = call.prefix .. 'deaths', reason = args[6], error = args[7], is_brief = args[10] == 'brief'}
  if args[3] ~= '' then walk.deaths = call.prefix .. 'deaths:' .. args[3] end
  walk.count = check_whole(args[5], 'count', 1, TASKS_PER_CALL)
  local older = check_whole(args[8], 'older_than_ms', 0, HORIZON_MS)
  local younger = check_whole(args[9], 'younger_than_ms', 0, HORIZON_MS)
  local died_at, id
  if args[4] == '' then
    walk.until_ms, walk.first = text(math.max(0, call.now - older)), 0
    if younger > 0 then
      walk.first = redis.call('ZCOUNT', walk.deaths, '-inf', '(' .. text(math.max(0, call.now - younger)))
    end
  else
    walk.until_ms, died_at, id = args[4]:match('^(%d+):(%d+):(.+)$')
    if not id then refuse('bad_request', 'cursor') end
    walk.first = rank_after(walk.deaths, died_at, id)
  end
  walk.left = redis.call('ZCOUNT', walk.deaths, '-inf', walk.until_ms) - walk.first
  return walk
end

local function is_wanted(walk, reason, message)
  return (walk.reason == '' or walk.reason == REASONS[reason]) and message:find(walk.error, 1, true)
end

-- A dead letter as in replies, with its record and traceback or, if they are not asked for, without.
local function letter_of(call, id, death, is_brief)
  local record = not is_brief and redis.call('HGET', call.prefix .. 'tasks', id) or ''
  if record ~= '' then record = records.whole(call, id, record) end
  return {id, death.tenant, REASONS[death.reason], death.attempts, text(death.died_at), death.error, record,
    is_brief and '' or death.traceback, death.lost_leases}
end

-- dead(keys, argv): a page of the dead letters that match, oldest first.
--   argv  3 tenant (empty: all)  4 cursor (empty to begin)  5 count (1..500)  6 reason (empty: any)  7 text that the
--         error contains (empty: any)  8 older_than_ms  9 younger_than_ms (0: any; with a cursor, which carries them,
--         not used)  10 "brief" to leave out the records and tracebacks
--   out   cursor (empty at the end), how many letters are left to look at, then per letter: {id, tenant, reason,
--         attempts, died_at_ms, error, record, traceback, lost_leases}. A call looks at no more than 500 letters, and
--         no further than PAGE_BYTES of letters and records: a page may be short, or empty, before the end.
function reads.dead(keys, args)
  local call = calls.ask(keys, args)
  local walk = read_walk(call, args)
  local is_filtered = walk.reason ~= '' or walk.error ~= ''
  local length = math.min(walk.left, is_filtered and TASKS_PER_CALL or walk.count)
  local out, bytes, seen, at_ms = {'', 0}, 0, 0, 0
  if length <= 0 then return out end
  local ids = redis.call('ZRANGE', walk.deaths, walk.first, walk.first + length - 1)
  for i, id in ipairs(ids) do
    local packed = redis.call('HGET', call.prefix .. 'dead', id)
    local death = DEATH.unpack(packed)
    seen, at_ms, bytes = i, death.died_at, bytes + #packed
    if is_wanted(walk, death.reason, death.error) then
      out[#out + 1] = letter_of(call, id, death, walk.is_brief)
      bytes = bytes + #out[#out][7]
    end
    if #out - 2 == walk.count or bytes >= PAGE_BYTES then break end
  end
  out[2] = walk.left - seen
  if out[2] > 0 then out[1] = table.concat({walk.until_ms, text(at_ms), ids[seen]}, ':') end
  return out
end

-- dead_letter(keys, argv): one dead letter.
--   argv  3 id  4 "brief" to leave out the record
--   out   its row as in `dead`, with its record and traceback; empty if there is no such dead letter
function reads.dead_letter(keys, args)
  local call, id = {prefix = keys[1] .. ':'}, args[3]
  local death = redis.call('HGET', call.prefix .. 'dead', id)
  if not death then return {} end
  local letter = letter_of(call, id, DEATH.unpack(death), args[4] == 'brief')
  letter[8] = DEATH.unpack(death).traceback
  return letter
end
