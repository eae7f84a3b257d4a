-- The rest of fair_acquire.lua, for a claim that was not granted: joins the queue unless it only tries, and answers.
if ARGV[6] == 'wait' then
    local mine, last = redis.call('ZSCORE', deadlines, owner), redis.call('LINDEX', queue, -1)
    local before = last and tonumber(redis.call('ZSCORE', deadlines, last)) or now
    -- Each grant of Redisson's takes one patience from all: one for each waiter is enough, and for oneself.
    local deadline = mine and math.min(tonumber(mine), now + redis.call('LLEN', queue) * patience) or before + patience
    deadline = math.max(deadline, now + patience)
    if redis.call('ZADD', deadlines, deadline, owner) == 1 then redis.call('RPUSH', queue, owner) end
    redis.call('ZADD', beats, now + ttl, owner)
    -- For as long as it stands in the queue: without its heartbeat a dead one would be taken for another's.
    redis.call('PEXPIRE', beats, math.max(redis.call('PTTL', beats), ttl, deadline - now))
    for _, key in ipairs({queue, deadlines}) do
        -- If all clients die, nobody empties it. Redisson's have no ttl there, and what they wait in must not end before they do.
        if has_foreign() then
            redis.call('PERSIST', key)
        else
            redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ttl, deadline - now + patience))
        end
    end
end
local left = held and redis.call('PTTL', lock)
    or math.max(1, (redis.call('ZSCORE', beats, head) or redis.call('ZSCORE', deadlines, head) or now) - now)
-- Redisson discards whoever is not back within its patience.
local most = ARGV[6] == 'wait' and math.max(1, math.floor(patience / 3)) or left
return {(left < 0 or left > most) and most or left, (not head or head == owner) and 1 or 0}
