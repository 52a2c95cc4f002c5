-- Versions of what operators set: a weight, limits, opening hours, the settings of a queue. A change that brings along
-- the version that it is based on is refused if that is no longer the current one, so that two operators do not
-- overwrite each other's changes.
--
-- A version is a digest of the value itself: nothing is kept for it, it survives the end of a tenant or queue, and what
-- is set back to an old value has that value's version again. A change to what already holds is never refused: it
-- overwrites nothing, and may be the second of two whose first answer was lost.

local DIGITS = 12

-- The version of a value, told as words and numbers.
function versions.of(words)
  local texts = {}
  for i, word in ipairs(words) do texts[i] = type(word) == 'number' and text(word) or word end
  return redis.sha1hex(table.concat(texts, ' ')):sub(1, DIGITS)
end

-- Refuses a change from `current` to `new` that is based on another version. Empty or nil: it is based on none.
function versions.check(given, current, new)
  if not given or given == '' then return end
  local version = versions.of(current)
  if given ~= version and versions.of(new) ~= version then refuse('stale_version', 'if_version ' .. version) end
end
