-- Shared by every script of the ledger; `K` (key functions), `ARQ` (arq's key prefixes), `SCRIPT` (the script's
-- name) and `a` (the arguments) stand above it. Scripts return arrays of strings and numbers.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local now = now_ms()

-- Out of memory, Redis refuses the first write of a script, and lets one go on that has written something. Only
-- new work may be refused: what was accepted must be able to end, or workers would lose leases that they renew.
if SCRIPT ~= 'submit' and SCRIPT ~= 'upload' and SCRIPT ~= 'retry' then redis.call('DEL', K.NOTHING) end

-- Events are gathered and written once per run at the end of the script.
local pending_events = {}
local function event(run, fields)
  fields.v = 1
  local list = pending_events[run]
  if not list then
    list = {}
    pending_events[run] = list
  end
  list[#list + 1] = fields
end
-- A stream is bounded, and lives as long as its run.
local function write_events(run, packed)
  local key = K.events(run)
  redis.call('XADD', key, 'MAXLEN', '~', a.max_events, '*', 'e', packed)
  if redis.call('PTTL', key) < 0 then
    redis.call('PEXPIRE', key, math.max(redis.call('PTTL', K.run(run)), 60000))
  end
end

-- Counts are gathered, too (`statistics.py` names the fields), and written once per model and field. They come last and
-- by pcall: whatever somebody else has put there must not cost the change that is counted.
local STATS_LIFE_MS = 30 * 86400000
local pending_counts = {}
local function count(alias, field, number)
  if not alias or number == 0 then return end
  local fields = pending_counts[alias] or {}
  pending_counts[alias] = fields
  fields[field] = (fields[field] or 0) + (number or 1)
end
local function observe(alias, stage, ms)
  ms = math.max(0, ms)
  count(alias, stage .. ':count')
  count(alias, stage .. ':sum_us', math.floor(ms * 1000 + 0.5))
  for _, bound in ipairs(BOUNDS_MS) do
    if ms <= bound then return count(alias, stage .. ':le:' .. bound) end
  end
end

local function flush()
  for run, list in pairs(pending_events) do
    write_events(run, cmsgpack.pack(list))
  end
  for alias, fields in pairs(pending_counts) do
    local key = K.model_stats(alias)
    for field, number in pairs(fields) do
      redis.pcall('HINCRBY', key, field, string.format('%d', math.min(number, 2 ^ 53)))
    end
    redis.pcall('PEXPIRE', key, STATS_LIFE_MS)
  end
end

-- A key lives at least `ms` from now; a longer life is left alone.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- kind, run, index, attempt or kind, prefix, generation; nothing if it is no job of ours.
local function split_job(job)
  local run, index, attempt = string.match(job, '^b:(%w+):(%d+):(%d+)$')
  if run then return 'b', run, tonumber(index), tonumber(attempt) end
  local prefix, generation = string.match(job, '^p:(%w+):(%d+)$')
  if prefix then return 'p', prefix, tonumber(generation) end
end

-- The arq side of a job: its definition, its place in the queue, the bell. Order is decided by `score`.
local JOB_LIFE_MS = 30 * 86400000
local function enqueue(role, alias, job, func, id, number, score)
  local definition = cmsgpack.pack({t = 1, f = func, a = {id}, k = {number = number}, et = now})
  redis.call('SET', ARQ.job .. job, definition, 'PX', JOB_LIFE_MS)
  redis.call('ZADD', K.queue(role, alias), score, job)
  redis.call('PEXPIRE', K.queue(role, alias), JOB_LIFE_MS)
  redis.call('ZADD', K.READY, now, job)
  redis.call('PUBLISH', K.doorbell(role, alias), '')
end

local function dequeue(role, alias, job)
  redis.call('ZREM', K.queue(role, alias), job)
  redis.call('ZREM', K.READY, job)
  redis.call('DEL', ARQ.job .. job, ARQ.retry .. job)
end

-- A job that runs no more. arq cleans up behind itself, too, but a worker may die before it does.
local function release(job)
  redis.call('ZREM', K.LEASES, job)
  redis.call('DEL', ARQ.job .. job, ARQ.retry .. job)
end

-- What indexes of branches call one.
local function branch_member(run, index) return run .. ':' .. index end
local function branch_job(run, index, attempt) return 'b:' .. run .. ':' .. index .. ':' .. attempt end
local function prefill_job(prefix, generation) return 'p:' .. prefix .. ':' .. generation end

-- A branch becomes ready: a new attempt, so that whatever an older attempt still does is refused. One that has waited
-- for a snapshot was given its attempt when it began to: what followers are told then is what they hear of its end.
local function queue_branch(run, index, alias, offset)
  local key = K.branch(run, index)
  local is_new = redis.call('HGET', key, 'state') ~= 'waiting'
  local attempt = redis.call('HINCRBY', key, 'attempt', is_new and 1 or 0)
  if is_new and attempt > 1 then count(alias, 'retries') end
  redis.call('HSET', key, 'state', 'queued', 'ready_ms', now, 'worker', '')
  enqueue('branch', alias, branch_job(run, index, attempt), 'branch', run .. ':' .. index, attempt,
    now + (offset or index) / 1000)
  return attempt
end

local function queue_prefill(prefix, owner, delay_ms)
  local key = K.prefix(prefix)
  local generation = redis.call('HINCRBY', key, 'generation', 1)
  redis.call('HSET', key, 'state', 'queued', 'owner', owner, 'worker', '')
  enqueue('prefill', redis.call('HGET', key, 'model'), prefill_job(prefix, generation), 'prefill', prefix,
    generation, now + (delay_ms or 0))
end

local function run_exists(run) return redis.call('EXISTS', K.run(run)) == 1 end

-- Runs that were deleted by hand wait for nothing any more.
local function waiters(prefix)
  local list = {}
  for _, member in ipairs(redis.call('ZRANGE', K.waiters(prefix), 0, -1)) do
    local run, index = string.match(member, '^(%w+):(%d+)$')
    if run and run_exists(run) then list[#list + 1] = {run = run, index = tonumber(index)} end
  end
  return list
end

local function waiting_runs(prefix)
  local seen, runs = {}, {}
  for _, waiter in ipairs(waiters(prefix)) do
    if not seen[waiter.run] then
      seen[waiter.run] = true
      runs[#runs + 1] = waiter.run
    end
  end
  return runs
end

local function copy_snapshot_facts(run, prefix)
  local facts = redis.call('HMGET', K.prefix(prefix), 'snapshot', 'tokens', 'prefill_ms')
  redis.call('HSET', K.run(run), 'snapshot', facts[1], 'tokens', facts[2], 'snapshot_prefill_ms', facts[3],
    'state', 'running')
end

-- Snapshot ready: queue the branch. Else: join the waiters and see to it that exactly one prefill is queued.
local function wait_or_queue(run, index, prefix, alias)
  local state = redis.call('HGET', K.prefix(prefix), 'state')
  if state == 'ready' then
    queue_branch(run, index, alias)
    return 'ready'
  end
  if redis.call('HINCRBY', K.branch(run, index), 'attempt', 1) > 1 then count(alias, 'retries') end
  redis.call('HSET', K.branch(run, index), 'state', 'waiting', 'worker', '')
  redis.call('ZADD', K.waiters(prefix), now + index / 1000, branch_member(run, index))
  keep(K.waiters(prefix), redis.call('PTTL', K.run(run)))
  if state ~= 'queued' and state ~= 'running' then
    queue_prefill(prefix, run)
  end
  return 'waiting'
end

local models = {}
local function model_of(run)
  if models[run] == nil then models[run] = redis.call('HGET', K.run(run), 'model') end
  return models[run]
end

local function finish_run(run)
  local key = K.run(run)
  local f = redis.call('HMGET', key, 'open', 'branches', 'done', 'cancelled', 'ttl_ms', 'error', 'is_cancelled')
  if tonumber(f[1]) > 0 then return end
  local state = 'completed_with_errors'
  if tonumber(f[3]) == tonumber(f[2]) then state = 'done'
  elseif f[7] or f[4] == f[2] then state = 'cancelled'
  elseif tonumber(f[3]) == 0 then state = 'failed' end
  redis.call('HSET', key, 'state', state, 'finished_ms', now)
  redis.call('ZREM', K.ACTIVE, run)
  count(model_of(run), 'runs_' .. state)
  event(run, {type = 'run_done', state = state, error = f[6] and cmsgpack.unpack(f[6]) or nil})
  for index = 0, tonumber(f[2]) - 1 do
    redis.call('PEXPIRE', K.branch(run, index), f[5])
  end
  redis.call('PEXPIRE', key, f[5])
  redis.call('PEXPIRE', K.events(run), f[5])
  redis.call('XADD', K.done(run), '*', 'state', state)
  redis.call('PEXPIRE', K.done(run), f[5])
end

-- A branch reaches its end, once. `result` is the stored message, `shown` the same as a map for followers.
local function close_branch(run, index, attempt, state, result, shown)
  local key = K.branch(run, index)
  redis.call('HSET', key, 'state', state, 'result', result)
  redis.call('ZREM', K.OPEN, branch_member(run, index))
  redis.call('HINCRBY', K.run(run), state, 1)
  redis.call('HINCRBY', K.run(run), 'open', -1)
  count(model_of(run), 'branches_' .. state)
  event(run, {type = 'branch_done', branch = redis.call('HGET', key, 'name'), attempt = attempt, state = state,
    result = shown})
  finish_run(run)
end

local function end_branch(run, index, state, reason, err)
  local shown = {finish_reason = reason, error = err}
  local stored = {v = 1, finish_reason = reason, error = err}
  local attempt = tonumber(redis.call('HGET', K.branch(run, index), 'attempt'))
  close_branch(run, index, attempt, state, cmsgpack.pack(stored), shown)
end
local function fail_branch(run, index, err) end_branch(run, index, 'failed', 'error', err) end

-- Takes a branch out of wherever it waits or runs. Returns false if it has ended already.
local function withdraw_branch(run, index, alias, prefix)
  local f = redis.call('HMGET', K.branch(run, index), 'state', 'attempt')
  if f[1] == 'waiting' then
    redis.call('ZREM', K.waiters(prefix), run .. ':' .. index)
  elseif f[1] == 'queued' then
    dequeue('branch', alias, branch_job(run, index, f[2]))
  elseif f[1] == 'running' then
    release(branch_job(run, index, f[2]))
  else
    return false
  end
  return true
end

-- A prefill that nobody waits for any more is dropped; a worker that runs it is told.
local function drop_idle_prefill(prefix)
  local f = redis.call('HMGET', K.prefix(prefix), 'state', 'generation', 'model')
  if (f[1] ~= 'queued' and f[1] ~= 'running') or redis.call('ZCARD', K.waiters(prefix)) > 0 then return end
  local job = prefill_job(prefix, f[2])
  dequeue('prefill', f[3], job)
  release(job)
  redis.call('HSET', K.prefix(prefix), 'state', 'absent')
  redis.call('PUBLISH', K.CONTROL, job)
end

-- Ends the open branches of a run with the same words, those of `names` if any are given; the workers are told.
-- Returns the names of those that were open.
local function end_open_branches(run, state, reason, err, names)
  local f = redis.call('HMGET', K.run(run), 'branches', 'model', 'prefix')
  local wanted, ended = {}, {}
  for _, name in ipairs(names or {}) do wanted[name] = true end
  for index = 0, tonumber(f[1]) - 1 do
    local b = redis.call('HMGET', K.branch(run, index), 'attempt', 'name')
    if (not names or #names == 0 or wanted[b[2]]) and withdraw_branch(run, index, f[2], f[3]) then
      redis.call('PUBLISH', K.CONTROL, branch_job(run, index, b[1]))
      end_branch(run, index, state, reason, err)
      ended[#ended + 1] = b[2]
    end
  end
  drop_idle_prefill(f[3])
  return ended
end

-- Every branch that waits for the prefix ends by `close`, one of fail_branch and park_branch.
local function fail_prefix(prefix, err, close)
  local runs = waiting_runs(prefix)
  for _, run in ipairs(runs) do
    redis.call('HSET', K.run(run), 'error', cmsgpack.pack(err))
  end
  local list = waiters(prefix)
  redis.call('DEL', K.waiters(prefix))
  redis.call('HSET', K.prefix(prefix), 'state', 'absent', 'worker', '')
  for _, waiter in ipairs(list) do
    close(waiter.run, waiter.index, err)
  end
end

-- Is this attempt still the one that the ledger lets this worker run?
local function branch_is_held(run, index, attempt, worker)
  local f = redis.call('HMGET', K.branch(run, index), 'state', 'attempt', 'worker')
  return f[1] == 'running' and tonumber(f[2]) == tonumber(attempt) and f[3] == worker and run_exists(run)
end
local function prefill_is_held(prefix, generation, worker)
  local f = redis.call('HMGET', K.prefix(prefix), 'state', 'generation', 'worker')
  return f[1] == 'running' and tonumber(f[2]) == tonumber(generation) and f[3] == worker
end

-- Queues a job of this worker again; false if it is not the worker's to give.
local function give_back(job, worker, reason, delay_ms)
  local kind, id, second, third = split_job(job)
  if kind == 'b' and branch_is_held(id, second, third, worker) then
    release(job)
    local attempt = queue_branch(id, second, redis.call('HGET', K.run(id), 'model'), delay_ms * 1000 + second)
    event(id, {type = 'branch_restarted', branch = redis.call('HGET', K.branch(id, second), 'name'),
      attempt = attempt, reason = reason})
    return true
  elseif kind == 'p' and prefill_is_held(id, second, worker) then
    release(job)
    queue_prefill(id, redis.call('HGET', K.prefix(id), 'owner'), delay_ms)
    return true
  end
  return false
end
