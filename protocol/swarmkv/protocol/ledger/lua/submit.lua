-- Accepts a run whole, or not at all. Returns {status, ...}.
-- a: run, spec, name, document_name, model, prefix, prefix_spec, document, document_bytes, branches[{name, spec, within_ms (0: as long as the run)}], deadline_ms,
--    ttl_ms, any_model, limits, trace
local run_key = K.run(a.run)
if redis.call('EXISTS', run_key) == 1 then return {'exists'} end
if not a.any_model and redis.call('SISMEMBER', K.MODELS, a.model) == 0 then
  return {'unknown_model', unpack(redis.call('SMEMBERS', K.MODELS))}
end
local refused = branches_refused(#a.branches)
if refused then return refused end
if redis.call('EXISTS', K.document(a.document)) == 0 then
  return document_refused(a.document_bytes) or {'document_missing'}
end

local life_ms, deadline_ms = a.deadline_ms + a.ttl_ms, now + a.deadline_ms
redis.call('HSET', run_key, 'spec', a.spec, 'state', 'queued', 'name', a.name, 'model', a.model,
  'document_name', a.document_name,
  'prefix', a.prefix, 'branches', #a.branches, 'open', #a.branches, 'done', 0, 'failed', 0, 'cancelled', 0,
  'created_ms', now, 'opened_ms', now, 'worked_ms', 0, 'deadline_ms', deadline_ms, 'ttl_ms', a.ttl_ms,
  'prefills_run', 0, 'prefill_ms', 0)
if a.trace ~= '' then redis.call('HSET', run_key, 'trace', a.trace) end
redis.call('ZADD', K.RUNS, now, a.run)
redis.call('ZADD', K.ACTIVE, deadline_ms, a.run)
trim_runs()
note_asked(a.model)
count(a.model, 'runs_submitted')
local found = renew_prefix(a.prefix, a.prefix_spec, a.model)
local is_hit = found == 'ready' or found == 'queued' or found == 'running'
count(a.model, is_hit and 'snapshot_hits' or 'snapshot_misses')

local state = 'waiting'
for position, branch in ipairs(a.branches) do
  local index = position - 1
  redis.call('HSET', K.branch(a.run, index), 'name', branch[1], 'spec', branch[2], 'within_ms', branch[3],
    'attempt', 0, 'rebuilds', 0, 'crashes', 0, 'solo_crashes', 0, 'solo', 0)
  redis.call('PEXPIRE', K.branch(a.run, index), life_ms)
  keep_branch_open(a.run, index, deadline_ms)
  state = wait_or_queue(a.run, index, a.prefix, a.model)
end
show_prefill(a.run, a.prefix, state)
keep_run(a.run, a.prefix, a.document, life_ms)
trim_documents()
flush()
return {'accepted', state}
