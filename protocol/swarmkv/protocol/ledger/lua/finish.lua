-- Writes results, each once: an attempt that no longer holds its branch is refused. Returns {1|0, ...}.
-- a: worker, items[{run, index, attempt, state, result, shown}]
local runs = {}
local function facts_of(run)
  if not runs[run] then
    local f = redis.call('HMGET', K.run(run), 'model', 'prefix', 'opened_ms', 'restored', 'snapshot_prefill_ms', 'prefill_ms')
    runs[run] = {alias = f[1], prefix = f[2], opened_ms = tonumber(f[3]), restored = tonumber(f[4] or 0),
      alone_ms = tonumber(f[5] or 0), spent_ms = tonumber(f[6] or 0), hits = 0}
  end
  return runs[run]
end

-- What the branches of a run have saved once `restored` of them have continued its snapshot; as in its report.
local function saved_ms(facts, restored)
  return math.floor(math.max(0, restored * facts.alone_ms - facts.spent_ms))
end

local function measure(facts, tokens, ms)
  for _, kind in ipairs({'reused', 'recomputed', 'prompt', 'generated'}) do
    count(facts.alias, 'tokens_' .. kind, tokens[kind])
  end
  observe(facts.alias, 'queue', ms.queue)
  if ms.restore > 0 then observe(facts.alias, 'restore', ms.restore) end -- a resident needs none
  observe(facts.alias, 'ttft', ms.first_token)
  observe(facts.alias, 'decode', ms.decode)
  if tokens.generated > 1 then observe(facts.alias, 'inter_token', ms.decode / (tokens.generated - 1)) end
  observe(facts.alias, 'e2e', now - facts.opened_ms)
  if tokens.reused > 0 then
    facts.hits = facts.hits + 1
    local restored = facts.restored + facts.hits
    count(facts.alias, 'prefill_saved_ms', saved_ms(facts, restored) - saved_ms(facts, restored - 1))
  end
end

local answers = {}
for position, item in ipairs(a.items) do
  local run, index, attempt = item[1], item[2], item[3]
  if branch_is_held(run, index, attempt, a.worker) then
    release(branch_job(run, index, attempt))
    if item[4] == 'done' then measure(facts_of(run), item[6].tokens, item[6].timings_ms) end
    close_branch(run, index, attempt, item[4], item[5], item[6])
    answers[position] = 1
  else
    answers[position] = 0
  end
end
for run, facts in pairs(runs) do
  local key = K.prefix(facts.prefix)
  if facts.hits > 0 and redis.call('EXISTS', key) == 1 then
    redis.call('HINCRBY', K.run(run), 'restored', facts.hits)
    redis.call('HINCRBY', key, 'hits', facts.hits)
    redis.call('HSET', key, 'used_ms', now)
  end
end
flush()
return answers
