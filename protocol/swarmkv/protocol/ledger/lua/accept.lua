-- Shared by the scripts that accept work: how much Redis holds, and how long.
-- Scores are expiries, so that what has expired does not count, whether or not anybody has swept since.

local function refusal(what, held, asked, limit, wait_ms)
  if limit == 0 or held + asked <= limit then return nil end
  return {'overloaded', what, held, asked, limit, wait_ms or 0}
end

-- nil when `count` more branches may be open, else the script's answer. A branch past its deadline has ended.
local function branches_refused(count)
  return refusal('branches', redis.call('ZCOUNT', K.OPEN, '(' .. now, '+inf'), count, a.limits.branches)
end

-- A branch ends by its own deadline, or by its run's if that comes first or it has none.
local function keep_branch_open(run, index, run_deadline_ms)
  local within_ms = tonumber(redis.call('HGET', K.branch(run, index), 'within_ms') or 0)
  local deadline_ms = within_ms > 0 and math.min(now + within_ms, run_deadline_ms) or run_deadline_ms
  redis.call('ZADD', K.OPEN, deadline_ms, branch_member(run, index))
end

-- A member of the documents' index says the size, for when the document is no more.
local function size_of(member) return tonumber(string.match(member, ':(%d+)$')) or 0 end

local function held_bytes()
  local bytes = tonumber(redis.call('GET', K.DOCUMENT_BYTES) or 0)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', K.DOCUMENTS, '-inf', now)) do
    bytes = bytes - size_of(member)
  end
  return bytes
end

-- nil when a document of that size may be stored, else the script's answer with the time until one expires.
local function document_refused(size_bytes)
  local held = redis.call('ZCOUNT', K.DOCUMENTS, '(' .. now, '+inf')
  local next = redis.call('ZRANGEBYSCORE', K.DOCUMENTS, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local wait_ms = next[2] and next[2] - now
  return refusal('documents', held, 1, a.limits.documents, wait_ms)
    or refusal('document_bytes', held_bytes(), size_bytes, a.limits.document_bytes, wait_ms)
end

local function drop_document(member)
  redis.call('ZREM', K.DOCUMENTS, member)
  redis.call('DECRBY', K.DOCUMENT_BYTES, size_of(member))
end

-- Documents that expired leave the index; so do some of those that were deleted by hand.
local function trim_documents()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', K.DOCUMENTS, '-inf', now)) do drop_document(member) end
  for _, member in ipairs(redis.call('ZRANDMEMBER', K.DOCUMENTS, 10)) do
    local digest = string.match(member, '^(%w+):')
    if not digest or redis.call('EXISTS', K.document(digest)) == 0 then drop_document(member) end
  end
  if redis.call('EXISTS', K.DOCUMENTS) == 0 then redis.call('DEL', K.DOCUMENT_BYTES) end
end

local function keep_document(digest, ms)
  local key = K.document(digest)
  keep(key, ms)
  local size_bytes = redis.call('STRLEN', key)
  local member = digest .. ':' .. string.format('%d', size_bytes)
  if redis.call('ZADD', K.DOCUMENTS, now + redis.call('PTTL', key), member) == 1 then
    redis.call('INCRBY', K.DOCUMENT_BYTES, size_bytes)
  end
end

-- The index holds few runs that have expired: some of them are dropped each time.
local function trim_runs()
  for _, run in ipairs(redis.call('ZRANDMEMBER', K.RUNS, 10)) do
    if not run_exists(run) then redis.call('ZREM', K.RUNS, run) end
  end
end

-- The prefix that a run asks for. Another model may stand behind the alias now: its workers would refuse the snapshot.
-- Returns the prefix's state.
local function renew_prefix(prefix, spec, alias)
  local key = K.prefix(prefix)
  redis.call('HSET', key, 'spec', spec, 'model', alias, 'document', a.document)
  local f = redis.call('HMGET', key, 'state', 'identity')
  local announced = redis.call('HGET', K.model(alias), 'identity')
  if f[1] == 'ready' and announced and announced ~= '' and f[2] ~= announced then
    redis.call('HSET', key, 'state', 'absent')
    return 'absent'
  end
  return f[1]
end

-- Counting begins with the first work that is submitted for a model.
local function note_asked(alias)
  redis.call('ZADD', K.ASKED, now, alias)
  redis.pcall('HSETNX', K.model_stats(alias), 'since_ms', now)
end

-- A run whose branches were just queued, or wait, shows where its prefill stands.
local function show_prefill(run, prefix, state)
  local f = redis.call('HMGET', K.prefix(prefix), 'state', 'tokens', 'prefill_ms')
  if state == 'ready' then
    copy_snapshot_facts(run, prefix)
    event(run, {type = 'prefill_done', tokens = tonumber(f[2]), prefill_ms = tonumber(f[3]), reused = true})
  else
    redis.call('HSET', K.run(run), 'state', f[1] == 'running' and 'prefilling' or 'queued')
  end
end

-- Everything that a run needs lives as long as the run may.
local function keep_run(run, prefix, document, ms)
  for _, key in ipairs({K.run(run), K.prefix(prefix), K.waiters(prefix)}) do keep(key, ms) end
  local f = redis.call('HMGET', K.prefix(prefix), 'state', 'snapshot')
  if f[1] == 'ready' and f[2] then keep(K.snapshot(f[2]), ms) end
  keep_document(document, ms)
end
