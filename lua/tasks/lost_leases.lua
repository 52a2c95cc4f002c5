-- Lost leases: those whose worker's process died. They have a limit of their own (`max_lost_leases` of the queue).
--
-- A task may kill the process that runs it: it takes all memory, or a library crashes. Then the tasks that ran beside
-- it lose their leases too, and one death does not tell which of them it was. So a task runs beside others only as long
-- as a death would not end it:
--
-- - Each death counts for all tasks that may have begun. Most deaths have another cause (a deployment, a machine), so
--   nothing else changes at first: a machine's tasks are taken up as fast as before.
-- - A task whose next lost lease would be its last *runs alone*: its server pushes it to a worker that holds nothing
--   else, and pushes nothing beside it (fairq/server/engine/dispatch/running_alone.py). If the process dies again, it
--   was this task or something outside.
-- - A task that ran beside others never reaches the limit. So whatever others do, it is dead of lost leases only if
--   `max_lost_leases` processes died under it, the last one while it ran alone.
--
-- A limit of 1 buries all tasks of the first process that dies; with 2 they run alone after that. A lost lease costs an
-- attempt as well, so `max_attempts` still bounds how often a task begins: with 2, tasks run alone after a first death.
--
-- Only servers that saw a process end say so (the actions `lose` and `lose_alone`). A lease that ran out tells nothing
-- about the task: its server died, the network was silent, or the store was away.

local MOST = 255  -- what is counted where there is no limit

-- True if a task that has lost so many leases runs alone in the attempt that begins, its last one or not.
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
