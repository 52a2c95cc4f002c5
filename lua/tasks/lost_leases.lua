-- Lost leases: leases that ended because the worker's process died. They have their own limit, the queue's
-- `max_lost_leases`.
--
-- A task may kill the process that runs it: it takes all memory, or a library crashes. Then the tasks in the same
-- process lose their leases too, and one death does not show which task caused it. So a task shares a process only as
-- long as one more death would not bury it:
--
-- - Each death counts for all tasks that may have begun. Most deaths have another cause (a deployment, a machine that
--   loses its connections), so nothing else changes at first: its tasks are ready as soon as before.
-- - If the next lost lease would be its last, the task *runs alone*: its server pushes it to a worker that holds
--   nothing else, and pushes nothing more until it is settled (fairq/server/engine/dispatch/running_alone.py). If the
--   process dies again, this task or something outside caused it.
-- - A task that shares a process never reaches the limit. So a task is buried for lost leases only if `max_lost_leases`
--   processes died under it, the last one while it ran alone.
--
-- A limit of 1 buries all tasks of the first process that dies; with 2 they run alone after that. A lost lease costs an
-- attempt as well, so `max_attempts` still bounds how often a task begins: with 2, tasks run alone after a first death.
--
-- Only servers that saw a process end report it (the actions `lose` and `lose_alone`). A lease that ran out says
-- nothing about the task: its server died, the network was silent, or the store was away.

local MOST = 255  -- the highest count

-- True if a task that has lost `lost` leases runs alone in the attempt that begins, its last one or not.
function lost_leases.runs_alone(queue, lost, is_last_attempt)
  local limit = queue.max_lost_leases
  return lost > 0 and (is_last_attempt or limit > 0 and lost + 1 >= limit)
end

-- Counts a lost lease of a run. Returns whether it was the last one.
function lost_leases.count(queue, run, was_alone)
  local limit, lost = queue.max_lost_leases, run.lost_leases + 1
  local is_over = limit > 0 and lost >= limit
  if is_over and not was_alone and limit > 1 then return false end
  run.lost_leases = math.min(lost, MOST)
  return is_over
end
