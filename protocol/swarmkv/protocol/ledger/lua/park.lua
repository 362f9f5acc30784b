-- Shared by the scripts that give branches up, and put them back: the dead-letter list.
-- An entry is for people who look for what kills workers: ids, counts and a reason, never a word of a text. It lives as
-- long as results do, so its run is there as long as the entry is.
local MAX_DEAD = 10000

local function drop_dead(run, index)
  redis.call('ZREM', K.DEAD, branch_member(run, index))
  redis.call('DEL', K.dead(run, index))
end

local function trim_dead()
  redis.call('ZREMRANGEBYSCORE', K.DEAD, '-inf', now)
  local excess = redis.call('ZCARD', K.DEAD) - MAX_DEAD
  if excess <= 0 then return end
  for _, member in ipairs(redis.call('ZRANGE', K.DEAD, 0, excess - 1)) do
    redis.call('ZREM', K.DEAD, member)
    local run, index = string.match(member, '^(%w+):(%d+)$')
    if run then redis.call('DEL', K.dead(run, index)) end
  end
end

-- A branch fails, and is kept for people to look at.
local function park_branch(run, index, err)
  local f = redis.call('HMGET', K.branch(run, index), 'name', 'attempt', 'crashes', 'solo_crashes', 'rebuilds')
  local r = redis.call('HMGET', K.run(run), 'model', 'ttl_ms')
  redis.call('HSET', K.dead(run, index), 'name', f[1], 'attempts', f[2], 'crashes', f[3], 'solo_crashes', f[4],
    'rebuilds', f[5], 'model', r[1], 'code', err.code, 'message', err.message, 'hint', err.hint, 'dead_ms', now)
  redis.call('PEXPIRE', K.dead(run, index), r[2])
  redis.call('ZADD', K.DEAD, now + r[2], branch_member(run, index))
  trim_dead()
  count(r[1], 'dead')
  fail_branch(run, index, err)
end
