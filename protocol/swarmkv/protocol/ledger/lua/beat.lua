-- A worker is alive: renew its entry and its leases. Returns the jobs that are no longer its own.
-- Its model is announced again, in case that Redis was emptied; what another worker announced since stays.
-- a: worker, lease_ms, info{field = value}, jobs[]
local key = K.worker(a.worker)
for field, value in pairs(a.info) do
  redis.call('HSET', key, field, value)
end
redis.call('HSET', key, 'beat_ms', now)
redis.call('PEXPIRE', key, a.lease_ms)
redis.call('ZADD', K.WORKERS, now, a.worker)
redis.call('SADD', K.MODELS, a.info.model)
if a.info.identity ~= '' then redis.call('HSETNX', K.model(a.info.model), 'identity', a.info.identity) end
local lost = {}
for _, job in ipairs(a.jobs) do
  local kind, id, second, third = split_job(job)
  local held
  if kind == 'b' then held = branch_is_held(id, second, third, a.worker)
  else held = prefill_is_held(id, second, a.worker) end
  if held then
    redis.call('ZADD', K.LEASES, now + a.lease_ms, job)
    redis.call('SET', ARQ.in_progress .. job, '1', 'PX', a.lease_ms)
  else
    lost[#lost + 1] = job
  end
end
return lost
