-- A worker takes up to `limit` queued jobs and leases them: leaving the queue and becoming running is one step,
-- so the queue's size is what really waits. A branch that must run alone is taken by a worker that holds nothing, and
-- no other behind it: who meets one takes no more until then. Returns {now, {job...}, {prefix...}}.
-- a: role, alias, worker, lease_ms, limit, held (jobs that the worker has)
local taken, prefixes, seen = {}, {}, {}

local function lease(job, key)
  redis.call('ZADD', K.LEASES, now + a.lease_ms, job)
  redis.call('SET', ARQ.in_progress .. job, '1', 'PX', a.lease_ms)
  redis.call('HSET', key, 'state', 'running', 'worker', a.worker, 'started_ms', now)
end

local function take_branch(job, run, index, attempt)
  local key = K.branch(run, index)
  local f = redis.call('HMGET', key, 'state', 'attempt', 'spec', 'solo', 'ready_ms', 'name')
  local prefix = redis.call('HGET', K.run(run), 'prefix')
  if f[1] ~= 'queued' or tonumber(f[2]) ~= attempt or not prefix then return end
  lease(job, key)
  event(run, {type = 'branch_started', branch = f[6], attempt = attempt, worker = a.worker})
  taken[#taken + 1] = {job, f[3] or '', tonumber(f[4]) or 0, now - tonumber(f[5]), prefix}
  if not seen[prefix] then
    seen[prefix] = true
    local p = redis.call('HMGET', K.prefix(prefix), 'spec', 'snapshot', 'generation')
    prefixes[#prefixes + 1] = {prefix, p[1] or '', p[2] or '', tonumber(p[3]) or 0}
  end
end

local function take_prefill(job, prefix, generation)
  local key = K.prefix(prefix)
  local f = redis.call('HMGET', key, 'state', 'generation', 'spec')
  if f[1] ~= 'queued' or tonumber(f[2]) ~= generation then return end
  lease(job, key)
  for _, run in ipairs(waiting_runs(prefix)) do
    redis.call('HSET', K.run(run), 'state', 'prefilling')
  end
  taken[#taken + 1] = {job, f[3] or '', 0, 0, prefix}
end

local function is_solo(kind, run, index)
  return kind == 'b' and redis.call('HGET', K.branch(run, index), 'solo') == '1'
end

for _, job in ipairs(redis.call('ZRANGEBYSCORE', K.queue(a.role, a.alias), '-inf', now + 1, 'LIMIT', 0, a.limit)) do
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
flush_events()
return {now, taken, prefixes}
