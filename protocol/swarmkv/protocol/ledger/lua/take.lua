-- A worker takes up to `limit` queued jobs and leases them: leaving the queue and becoming running is one step,
-- so the queue's size is what really waits. A branch that must run alone is taken by a worker that holds nothing, and
-- no other behind it: who meets one takes no more until then. Returns {now, {job...}, {prefix...}}.
-- a: role, alias, worker, lease_ms, limit, held (jobs that the worker has), residents[] (snapshots in its KV cache),
--    patience_ms
local SCAN = 256 -- how far behind the oldest job a branch of a resident is looked for
local taken, prefixes, seen = {}, {}, {}

local function lease(job, key)
  redis.call('ZADD', K.LEASES, now + a.lease_ms, job)
  redis.call('SET', ARQ.in_progress .. job, '1', 'PX', a.lease_ms)
  redis.call('HSET', key, 'state', 'running', 'worker', a.worker, 'started_ms', now)
end

local function take_branch(job, run, index, attempt)
  local key = K.branch(run, index)
  local f = redis.call('HMGET', key, 'state', 'attempt', 'spec', 'solo', 'ready_ms', 'name')
  local r = redis.call('HMGET', K.run(run), 'prefix', 'trace')
  local prefix = r[1]
  if f[1] ~= 'queued' or tonumber(f[2]) ~= attempt or not prefix then return end
  lease(job, key)
  event(run, {type = 'branch_started', branch = f[6], attempt = attempt, worker = a.worker})
  taken[#taken + 1] = {job, f[3] or '', tonumber(f[4]) or 0, now - tonumber(f[5]), prefix, r[2] or ''}
  if not seen[prefix] then
    seen[prefix] = true
    local p = redis.call('HMGET', K.prefix(prefix), 'spec', 'snapshot', 'generation')
    prefixes[#prefixes + 1] = {prefix, p[1] or '', p[2] or '', tonumber(p[3]) or 0}
  end
end

local function take_prefill(job, prefix, generation)
  local key = K.prefix(prefix)
  local f = redis.call('HMGET', key, 'state', 'generation', 'spec', 'owner')
  if f[1] ~= 'queued' or tonumber(f[2]) ~= generation then return end
  lease(job, key)
  for _, run in ipairs(waiting_runs(prefix)) do
    redis.call('HSET', K.run(run), 'state', 'prefilling')
  end
  local owner = f[4] or ''
  taken[#taken + 1] = {job, f[3] or '', 0, 0, prefix, redis.call('HGET', K.run(owner), 'trace') or '', owner}
end

local function is_solo(kind, run, index)
  return kind == 'b' and redis.call('HGET', K.branch(run, index), 'solo') == '1'
end

local snapshots = {}
local function snapshot_of(job)
  local kind, run = split_job(job)
  if kind ~= 'b' then return nil end
  if snapshots[run] == nil then
    local prefix = redis.call('HGET', K.run(run), 'prefix')
    snapshots[run] = prefix and redis.call('HGET', K.prefix(prefix), 'snapshot') or false
  end
  return snapshots[run]
end

-- The oldest jobs; branches of the worker's residents come first, unless the oldest job has lost patience.
local function candidates()
  local found = redis.call('ZRANGEBYSCORE', K.queue(a.role, a.alias), '-inf', now + 1, 'WITHSCORES',
    'LIMIT', 0, #a.residents > 0 and SCAN or a.limit)
  local resident = {}
  for _, snapshot in ipairs(a.residents) do resident[snapshot] = true end
  local is_impatient = #found > 0 and now - tonumber(found[2]) > a.patience_ms
  local near, far = {}, {}
  for position = 1, #found, 2 do
    local job = found[position]
    local list = not is_impatient and #a.residents > 0 and resident[snapshot_of(job) or ''] and near or far
    list[#list + 1] = job
  end
  for _, job in ipairs(far) do near[#near + 1] = job end
  return near
end

for _, job in ipairs(candidates()) do
  if #taken >= a.limit then break end
  local kind, id, second, third = split_job(job)
  local alone = is_solo(kind, id, second)
  local count = #taken
  if alone and count + a.held > 0 then break end
  redis.call('ZREM', K.queue(a.role, a.alias), job)
  redis.call('ZREM', K.READY, job)
  if kind == 'b' then take_branch(job, id, second, third) end
  if kind == 'p' then take_prefill(job, id, second) end
  if #taken == count then redis.call('DEL', ARQ.job .. job) end
  if alone and #taken > count then break end
end
flush()
return {now, taken, prefixes}
