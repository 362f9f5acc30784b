-- A snapshot is published: register it and release everything that waits for it. Returns 1, or 0 if not held.
-- a: prefix, generation, worker, snapshot, tokens, prefill_ms, size_bytes, identity, host, decoded, ttl_ms
if not prefill_is_held(a.prefix, a.generation, a.worker) then return 0 end
local key = K.prefix(a.prefix)
redis.call('HSET', key, 'state', 'ready', 'snapshot', a.snapshot, 'tokens', a.tokens, 'prefill_ms',
  tostring(a.prefill_ms), 'size_bytes', a.size_bytes, 'identity', a.identity, 'host', a.host, 'crashes', 0)
release(prefill_job(a.prefix, a.generation))
redis.call('SADD', K.snapshot(a.snapshot), a.prefix)
keep(K.snapshot(a.snapshot), a.ttl_ms)
local owner = redis.call('HGET', key, 'owner')
if a.decoded and redis.call('EXISTS', K.run(owner)) == 1 then
  redis.call('HINCRBY', K.run(owner), 'prefills_run', 1)
  redis.call('HINCRBYFLOAT', K.run(owner), 'prefill_ms', tostring(a.prefill_ms))
end
if a.decoded then
  local alias = redis.call('HGET', key, 'model')
  count(alias, 'prefills')
  count(alias, 'tokens_prefilled', a.tokens)
  observe(alias, 'prefill', a.prefill_ms)
end
for _, run in ipairs(waiting_runs(a.prefix)) do
  copy_snapshot_facts(run, a.prefix)
  event(run, {type = 'prefill_done', tokens = a.tokens, prefill_ms = a.prefill_ms, reused = not a.decoded})
end
local list = waiters(a.prefix)
redis.call('DEL', K.waiters(a.prefix))
for position, waiter in ipairs(list) do
  queue_branch(waiter.run, waiter.index, redis.call('HGET', K.run(waiter.run), 'model'), position)
end
flush()
return 1
