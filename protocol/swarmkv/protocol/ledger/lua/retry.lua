-- Branches that failed, or were cancelled, are queued again as new attempts; a run that had ended is open again.
-- Returns {'retried', name...} or {status, ...}.
-- a: run, states[], names[] (none: all), prefix_spec, document, deadline_ms (0: as long as before), limits
local run_key = K.run(a.run)
local f = redis.call('HMGET', run_key, 'branches', 'open', 'model', 'prefix', 'deadline_ms', 'opened_ms', 'ttl_ms',
  'finished_ms')
if not f[1] then return {'unknown'} end
local alias, prefix, ttl_ms = f[3], f[4], tonumber(f[7])
local is_open = tonumber(f[2]) > 0

local function set_of(list)
  local set = {}
  for _, item in ipairs(list) do set[item] = true end
  return set
end

local states, names, chosen = set_of(a.states), set_of(a.names), {}
for index = 0, tonumber(f[1]) - 1 do
  local b = redis.call('HMGET', K.branch(a.run, index), 'state', 'name', 'attempt')
  if states[b[1]] and (#a.names == 0 or names[b[2]]) then
    chosen[#chosen + 1] = {index = index, state = b[1], name = b[2], attempt = tonumber(b[3])}
  end
end
if #chosen == 0 then return {'retried'} end
local refused = branches_refused(#chosen)
if refused then return refused end
if redis.call('EXISTS', K.document(a.document)) == 0 then return {'document_gone'} end

-- A run that is still open keeps its deadline.
local deadline_ms = tonumber(f[5])
if not is_open then
  deadline_ms = now + (a.deadline_ms > 0 and a.deadline_ms or f[5] - f[6])
  redis.call('HSET', run_key, 'opened_ms', now, 'deadline_ms', deadline_ms)
  redis.call('HINCRBY', run_key, 'worked_ms', f[8] - f[6])
  redis.call('HDEL', run_key, 'finished_ms', 'is_cancelled')
  redis.call('DEL', K.done(a.run))
  redis.call('ZADD', K.ACTIVE, deadline_ms, a.run)
end
note_asked(alias)
renew_prefix(prefix, a.prefix_spec, alias)
local life_ms = deadline_ms - now + ttl_ms
keep_run(a.run, prefix, a.document, life_ms)
keep(K.events(a.run), life_ms)
for index = 0, tonumber(f[1]) - 1 do keep(K.branch(a.run, index), life_ms) end

-- One that ran alone still does; what it has cost others so far is forgiven.
local state
for _, branch in ipairs(chosen) do
  local key = K.branch(a.run, branch.index)
  redis.call('HINCRBY', run_key, branch.state, -1)
  redis.call('HINCRBY', run_key, 'open', 1)
  redis.call('HDEL', key, 'result')
  redis.call('HSET', key, 'solo_crashes', 0, 'rebuilds', 0)
  keep_branch_open(a.run, branch.index, deadline_ms)
  drop_dead(a.run, branch.index)
  state = wait_or_queue(a.run, branch.index, prefix, alias)
  event(a.run, {type = 'branch_restarted', branch = branch.name, attempt = branch.attempt + 1,
    reason = 'it is tried again'})
end
if tonumber(redis.call('HGET', run_key, 'failed')) == 0 then redis.call('HDEL', run_key, 'error') end
if state == 'ready' or not is_open then show_prefill(a.run, prefix, state) end
flush()
local answer = {'retried'}
for _, branch in ipairs(chosen) do answer[#answer + 1] = branch.name end
return answer
