-- A branch found its snapshot unusable: it waits again and the prefill is queued again, a bounded number of times.
-- a: run, index, attempt, worker, prefix, generation, max_rebuilds, error{code, message, hint}
if not branch_is_held(a.run, a.index, a.attempt, a.worker) then return 'refused' end
local key, prefix_key = K.branch(a.run, a.index), K.prefix(a.prefix)
release(branch_job(a.run, a.index, a.attempt))
local f = redis.call('HMGET', prefix_key, 'state', 'generation')
if f[1] == 'ready' and tonumber(f[2]) == a.generation then
  redis.call('HSET', prefix_key, 'state', 'absent')
end
local answer, alias = 'failed', model_of(a.run)
count(alias, 'rebuilds')
if redis.call('HINCRBY', key, 'rebuilds', 1) > a.max_rebuilds then
  park_branch(a.run, a.index, a.error)
else
  answer = wait_or_queue(a.run, a.index, a.prefix, alias)
  event(a.run, {type = 'branch_restarted', branch = redis.call('HGET', key, 'name'),
    attempt = a.attempt + 1, reason = a.error.message})
end
flush()
return answer
