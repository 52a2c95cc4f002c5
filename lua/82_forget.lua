-- The end of a queue that nobody uses any more: it leaves the registry by itself, as if it had never been.
--
-- Servers ask of each queue now and then whether it has had nothing for long enough. Then its record goes in the same
-- call that has looked, and nothing else is there, so the queue is unmade: what comes later is refused with `unmade`
-- until a server has made it anew. Then `remove_queue` takes its entry from the registry, as it was read before. A
-- server that makes the queue anew in between has renewed the entry first (`add_queue`), so that stays. A caller that
-- dies in between leaves an entry without a record: it goes when any server asks again.

do

-- Whether nothing was put in, kept or set that the queue still has. What stands in a key of its own (tenants, tasks,
-- what is remembered of them, batches, schedules, limits, opening hours and all else that 78_delete.lua lists) is seen
-- by that key: a queue with a new kind of key stays as soon as the key is in that list. What stands in the record alone
-- is looked at here.
local function has_nothing(call)
  local q = call.queue
  return q.blocked == 0 and settings.are_default(q) and not deletion.has_keys(call)
end

-- forget_queue(keys, argv): delete the record, and the history, of a queue that has had nothing for so long, and no
-- settings.
--   keys  1 prefix
--   argv  1 now  2 random_values  3 for how long, ms  4 made_at: when it was made, by its entry in the registry  5 the
--         server's own time (may be empty): see `tick`  6 whether to delete it, or only to tell (0, 1)
--   out   "ok" (also if it had no record) | "stays"
--   flags allow-oom
function verbs.forget_queue(keys, args)
  local call = calls.open(keys, args)
  local for_ms, made_at = check_whole(args[3], 'for_ms', 0, HORIZON_MS), check_whole(args[4], 'made_at', 0, HORIZON_MS)
  local is_meant = check_whole(args[6], 'delete', 0, 1) == 1
  calls.confirm(call, args[5])
  if math.max(call.queue.now, made_at) + for_ms > call.sure or not has_nothing(call) then return 'stays' end
  if is_meant then
    deletion.forget_history(call)
    redis.call('UNLINK', key(call, 'queue'))
  end
  return 'ok'
end

end
