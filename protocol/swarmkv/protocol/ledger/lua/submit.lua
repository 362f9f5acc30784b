-- Accepts a run whole, or not at all. Returns {status, ...}.
-- a: run, spec, name, model, prefix, prefix_spec, document, branches[{name, spec}], deadline_ms, ttl_ms, any_model
local run_key, prefix_key = K.run(a.run), K.prefix(a.prefix)
if redis.call('EXISTS', run_key) == 1 then return {'exists'} end
if not a.any_model and redis.call('SISMEMBER', K.MODELS, a.model) == 0 then
  return {'unknown_model', unpack(redis.call('SMEMBERS', K.MODELS))}
end
if redis.call('EXISTS', K.document(a.document)) == 0 then return {'document_missing'} end

local life_ms = a.deadline_ms + a.ttl_ms
redis.call('HSET', run_key, 'spec', a.spec, 'state', 'queued', 'name', a.name, 'model', a.model,
  'prefix', a.prefix, 'branches', #a.branches, 'open', #a.branches, 'done', 0, 'failed', 0, 'cancelled', 0,
  'created_ms', now, 'deadline_ms', now + a.deadline_ms, 'ttl_ms', a.ttl_ms, 'prefills_run', 0, 'prefill_ms', 0)
redis.call('ZADD', K.RUNS, now, a.run)
redis.call('ZADD', K.ACTIVE, now + a.deadline_ms, a.run)
redis.call('HSET', prefix_key, 'spec', a.prefix_spec, 'model', a.model)
-- The index holds few runs that have expired: each new one drops some of them.
for _, run in ipairs(redis.call('ZRANDMEMBER', K.RUNS, 10)) do
  if not run_exists(run) then redis.call('ZREM', K.RUNS, run) end
end

-- Another model stands behind the alias now: its workers would refuse the old snapshot.
local f = redis.call('HMGET', prefix_key, 'state', 'identity')
local announced = redis.call('HGET', K.model(a.model), 'identity')
if f[1] == 'ready' and announced and announced ~= '' and f[2] ~= announced then
  redis.call('HSET', prefix_key, 'state', 'absent')
end

local state = 'waiting'
for position, branch in ipairs(a.branches) do
  local index = position - 1
  redis.call('HSET', K.branch(a.run, index), 'name', branch[1], 'spec', branch[2], 'attempt', 0, 'rebuilds', 0,
    'crashes', 0, 'solo_crashes', 0, 'solo', 0)
  redis.call('PEXPIRE', K.branch(a.run, index), life_ms)
  state = wait_or_queue(a.run, index, a.prefix, a.model)
end
if state == 'ready' then
  copy_snapshot_facts(a.run, a.prefix)
  local facts = redis.call('HMGET', prefix_key, 'tokens', 'prefill_ms')
  event(a.run, {type = 'prefill_done', tokens = tonumber(facts[1]), prefill_ms = tonumber(facts[2]), reused = true})
elseif redis.call('HGET', prefix_key, 'state') == 'running' then
  redis.call('HSET', run_key, 'state', 'prefilling')
end
for _, key in ipairs({run_key, prefix_key, K.document(a.document), K.waiters(a.prefix)}) do
  keep(key, life_ms)
end
flush_events()
return {'accepted', state}
