-- Mends what nobody else does: leases that ran out, deadlines, queued work that arq does not know.
-- Anyone may call it at any time. Returns {leases, deadlines, requeued}.
-- a: max_solo_crashes, stale_ms, lease_ms
local LIMIT = 200
local FORGET_MS = 3600000
local MAX_COPIED = 200 -- models: those that work was submitted for last
local COPY_LIFE_MS = 65 * 60000
local counts = {0, 0, 0}

-- While Redis was away nobody could renew a lease. So after a time without sweeps every worker is first given the
-- chance to say that it lives.
local swept = tonumber(redis.call('GET', K.SWEPT) or now)
redis.call('SET', K.SWEPT, now)
if now - swept > a.lease_ms / 2 then
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', K.LEASES, '-inf', now)) do
    redis.call('ZADD', K.LEASES, now + a.lease_ms, job)
  end
end

-- After one crash all branches of the batch run again as before: a SIGKILL is far more common than a branch that
-- kills its worker. From the second crash on a branch runs alone, and only crashes while alone count to parking.
local function recover_branch(run, index)
  local key = K.branch(run, index)
  local f = redis.call('HMGET', key, 'worker', 'solo', 'name')
  local reason = 'its worker lost the lease'
  if redis.call('EXISTS', K.worker(f[1])) == 0 then
    reason = 'its worker died'
    count(model_of(run), 'crashes')
    if f[2] == '1' and redis.call('HINCRBY', key, 'solo_crashes', 1) >= a.max_solo_crashes then
      park_branch(run, index, {code = 'crashes_worker',
        message = 'This branch was running alone when its worker died, ' .. a.max_solo_crashes .. ' times.',
        hint = 'See the worker log for the reason of its death, and `swarmkv doctor`; other branches are not affected.'})
      return
    end
    if redis.call('HINCRBY', key, 'crashes', 1) >= 2 then redis.call('HSET', key, 'solo', 1) end
  end
  local attempt = queue_branch(run, index, redis.call('HGET', K.run(run), 'model'))
  event(run, {type = 'branch_restarted', branch = f[3], attempt = attempt, reason = reason})
end

local function recover_prefill(prefix)
  local key = K.prefix(prefix)
  local f = redis.call('HMGET', key, 'worker', 'owner', 'model')
  local is_dead = redis.call('EXISTS', K.worker(f[1])) == 0
  if is_dead then count(f[3], 'crashes') end
  if is_dead and redis.call('HINCRBY', key, 'crashes', 1) > a.max_solo_crashes then
    redis.call('HSET', key, 'crashes', 0)
    fail_prefix(prefix, {code = 'crashes_worker',
      message = 'The prefill of this document was running when its worker died, ' .. a.max_solo_crashes + 1 .. ' times.',
      hint = 'See the worker log for the reason of its death, and try `swarmkv doctor`: it computes a step of the model.'}, park_branch)
    return
  end
  queue_prefill(prefix, f[2])
end

for _, job in ipairs(redis.call('ZRANGEBYSCORE', K.LEASES, '-inf', now, 'LIMIT', 0, LIMIT)) do
  release(job)
  local kind, id, second, third = split_job(job)
  if kind == 'b' then
    local f = redis.call('HMGET', K.branch(id, second), 'state', 'attempt')
    if f[1] == 'running' and tonumber(f[2]) == third and run_exists(id) then recover_branch(id, second) end
  elseif kind == 'p' then
    local f = redis.call('HMGET', K.prefix(id), 'state', 'generation')
    if f[1] == 'running' and tonumber(f[2]) == second then recover_prefill(id) end
  end
  counts[1] = counts[1] + 1
end

for _, run in ipairs(redis.call('ZRANGEBYSCORE', K.ACTIVE, '-inf', now, 'LIMIT', 0, 20)) do
  redis.call('ZREM', K.ACTIVE, run)
  if redis.call('EXISTS', K.run(run)) == 1 then
    local f = redis.call('HMGET', K.run(run), 'opened_ms', 'deadline_ms', 'model')
    local seconds = math.floor((f[2] - f[1]) / 1000 + 0.5)
    local err = {code = 'deadline_exceeded',
      message = 'The run did not end within its deadline of ' .. seconds .. ' s.',
      hint = 'Is a worker for model "' .. f[3] .. '" running? `swarmkv workers` lists them.'}
    redis.call('HSET', K.run(run), 'error', cmsgpack.pack(err))
    end_open_branches(run, 'failed', 'error', err)
    counts[2] = counts[2] + 1
  end
end

-- Branches that were given less time than their run. Of what else stands there, the run has ended or is gone.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', K.OPEN, '(' .. now - FORGET_MS, now, 'LIMIT', 0, LIMIT)) do
  local run, index = string.match(member, '^(%w+):(%d+)$')
  local f = redis.call('HMGET', K.branch(run, index), 'name', 'within_ms')
  if f[2] and run_exists(run) then
    end_open_branches(run, 'failed', 'error', {code = 'deadline_exceeded',
      message = 'The branch did not end within its deadline of ' .. f[2] / 1000 .. ' s.',
      hint = 'Give it more time, or fewer tokens.'}, {f[1]})
    counts[2] = counts[2] + 1
  end
  redis.call('ZREM', K.OPEN, member)
end

local function is_queued(kind, id, second, third)
  if not kind or (kind == 'b' and not run_exists(id)) then return false end
  local key = kind == 'b' and K.branch(id, second) or K.prefix(id)
  local f = redis.call('HMGET', key, 'state', kind == 'b' and 'attempt' or 'generation')
  return f[1] == 'queued' and tonumber(f[2]) == (kind == 'b' and third or second)
end

for _, job in ipairs(redis.call('ZRANGEBYSCORE', K.READY, '-inf', now - a.stale_ms, 'LIMIT', 0, LIMIT)) do
  local kind, id, second, third = split_job(job)
  if not is_queued(kind, id, second, third) then
    redis.call('ZREM', K.READY, job)
  else
    local role = kind == 'b' and 'branch' or 'prefill'
    local alias = redis.call('HGET', kind == 'b' and K.run(id) or K.prefix(id), 'model')
    local queued = redis.call('ZSCORE', K.queue(role, alias), job)
    if queued and redis.call('EXISTS', ARQ.job .. job) == 1 then
      redis.call('ZADD', K.READY, now, job)
    else
      enqueue(role, alias, job, role, kind == 'b' and id .. ':' .. second or id, third or second, now)
      counts[3] = counts[3] + 1
    end
  end
end
-- Once a minute the counts of each model are copied: what was counted in the last hour is then a difference, whoever
-- watched meanwhile.
if math.floor(swept / 60000) < math.floor(now / 60000) then
  redis.call('ZREMRANGEBYSCORE', K.ASKED, '-inf', now - STATS_LIFE_MS)
  local minute = string.format('%d', math.floor(now / 60000))
  for _, alias in ipairs(redis.call('ZREVRANGE', K.ASKED, 0, MAX_COPIED - 1)) do
    local copy = K.model_stats_minute(minute, alias)
    redis.pcall('COPY', K.model_stats(alias), copy, 'REPLACE')
    redis.pcall('PEXPIRE', copy, COPY_LIFE_MS)
  end
end

-- What died without a word, or expired, leaves the indexes; the random ones are few, but each sweep takes some.
trim_runs()
trim_documents()
trim_dead()
redis.call('ZREMRANGEBYSCORE', K.OPEN, '-inf', now - FORGET_MS)
redis.call('ZREMRANGEBYSCORE', K.WORKERS, '-inf', now - FORGET_MS)
flush()
return counts
