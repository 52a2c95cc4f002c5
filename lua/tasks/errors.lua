-- needs: limits
--
-- Errors: what is kept of what a failure says.
--
-- It comes when its task is stored, and cannot be refused. So what its tenant's limit leaves no room for is cut, and
-- says so at its end. What is left then counts nothing: the bytes that its task counts have room for it (lua/KEYS.md).
-- All other errors and tracebacks count as long as they are.

local CUT = ' [cut: stored_bytes]'
local KEPT_BYTES = 40  -- of an error that is cut, before what says so

-- What an error or traceback counts among its tenant's bytes.
function errors.bytes_of(text)
  return #text <= KEPT_BYTES + #CUT and text:sub(-#CUT) == CUT and 0 or #text
end

-- What is kept of an error that takes the place of another one.
function errors.fit(call, account, text, previous)
  text = text:sub(1, ERROR_BYTES)
  local more = errors.bytes_of(text) - errors.bytes_of(previous)
  return (more <= 0 or more <= limits.room(call, account)) and text or text:sub(1, KEPT_BYTES) .. CUT
end

-- What is kept of the traceback of a run's error. Where that is cut, it has said so.
function errors.fit_traceback(call, account, text, message)
  text = text:sub(1, TRACEBACK_BYTES)
  if text == '' or #text <= limits.room(call, account) then return text end
  return message ~= '' and errors.bytes_of(message) == 0 and '' or CUT
end
