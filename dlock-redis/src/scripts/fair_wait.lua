-- The rest of fair_acquire.lua, for a claim that was not granted: joins the queue unless it only tries, and answers.
if ARGV[6] == 'wait' then
    local mine, last = redis.call('ZSCORE', deadlines, owner), redis.call('LINDEX', queue, -1)
    local before = last and tonumber(redis.call('ZSCORE', deadlines, last)) or now
    -- Each grant by Redisson moves all deadlines one patience earlier: one patience for each waiter, this one too, is enough.
    local deadline = mine and math.min(tonumber(mine), now + redis.call('LLEN', queue) * patience) or before + patience
    deadline = math.max(deadline, now + patience)
    if redis.call('ZADD', deadlines, deadline, owner) == 1 then redis.call('RPUSH', queue, owner) end
    redis.call('ZADD', beats, now + ttl, owner)
    -- A heartbeat stays as long as its waiter may be in the queue: a dead waiter without one would be taken for a foreign one.
    redis.call('PEXPIRE', beats, math.max(redis.call('PTTL', beats), ttl, deadline - now))
    for _, key in ipairs({queue, deadlines}) do
        -- If all clients die, nobody empties the queue: it needs a ttl. While foreign clients wait it has none: they do not renew it.
        if has_foreign() then
            redis.call('PERSIST', key)
        else
            redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ttl, deadline - now + patience))
        end
    end
end
local left = held and redis.call('PTTL', lock)
    or math.max(1, (redis.call('ZSCORE', beats, head) or redis.call('ZSCORE', deadlines, head) or now) - now)
-- A waiter must ask again within its patience, or Redisson discards it. A third of that leaves room.
local most = ARGV[6] == 'wait' and math.max(1, math.floor(patience / 3)) or left
return {(left < 0 or left > most) and most or left, (not head or head == owner) and 1 or 0}
